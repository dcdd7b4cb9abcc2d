"""Converts columns of states to CBOR items and back.

- forms: one codec per form of columns (algebra/columns/kind.py); sections use only this file
- numeric: numbers, in the smallest lossless form
- multisets: values as differences, counts unless all are 1
- series: times and arrival numbers as differences, decimal values as integers
- sketches: bytes of sketches, validated when they are decoded
- packed: arrays of numbers, deflated if that is shorter
"""
