"""The tests marked slow hold: full grids and large numbers of examples that `make test` has no time for."""

from tools.torture.examples import run_tests


def run() -> list[str]:
    return run_tests("-m", "slow", "-n", "auto", "--dist", "load")
