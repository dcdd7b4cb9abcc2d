"""The four kinds of faults under which random fleets run."""

from __future__ import annotations

from random import Random

from tests.support.simulation.world import MS, SECOND, Chaos


def calm(_random: Random) -> Chaos:
    return Chaos()


def lossy(random: Random) -> Chaos:
    delay_us = random.choice([50 * MS, 500 * MS, 5 * SECOND])
    return Chaos(random.choice([0.1, 0.4]), random.choice([0.1, 0.4]), delay_us, broker=0.01, partition=0.005)


def crashing(random: Random) -> Chaos:
    return Chaos(crash=random.choice([0.001, 0.005, 0.02]))


def everything(random: Random) -> Chaos:
    chaos = lossy(random)
    chaos.crash = random.choice([0.001, 0.005])
    return chaos
