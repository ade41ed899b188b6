"""Every property holds for examples that no run has tried before; `make test` tries the same ones each time."""

from tools.torture._tests import run_tests


def run() -> list[str]:
    return run_tests("-m", "hypothesis", "--hypothesis-profile", "others", "-n", "auto", "--dist", "loadfile")
