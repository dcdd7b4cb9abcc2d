"""Columns of states <-> CBOR items.

- forms: one codec for each form of columns (algebra/columns/kind.py); sections use only this
- numeric: numbers: the smallest form that gives back every bit
- multisets: values as steps, counts only where they say something
- series: times and arrival numbers as steps, values as units where they are decimals
- sketches: bytes of sketches, checked before anything reads them
- packed: arrays of numbers, deflated where that is shorter
"""
