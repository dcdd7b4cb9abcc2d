"""The checker of configurations.

checker          reads tables of declared keys and collects every mistake
documents        JSON or TOML to plain values, with the line of every key
foreign_json     JSON from a network to plain values, within limits of length and depth
value_types      types of a value: text, word, number, address
quantities       types with a unit: duration, size, moment
composite_types  types of types: lists, tables
durations        durations and sizes as people write them
"""
