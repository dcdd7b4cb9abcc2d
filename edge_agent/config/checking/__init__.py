"""The checker of configurations.

checker          reads tables of declared keys and collects every mistake
documents        JSON or TOML to plain values, with the line of every key
foreign_json     JSON from a network to plain values, within limits of length and depth
json_lines       plain values to one line of JSON
value_types      types of single values: text, word, number, address
quantities       types of values with a unit: duration, size, time
composite_types  types of lists and tables
durations        durations and sizes as text
"""
