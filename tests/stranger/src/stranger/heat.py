"""A factor of a stranger: `factor: heat` with the `file` in which a sensor writes degrees."""

from pathlib import Path

from diana.plugins import ConfigError, Factor, Level


def _heat(*, file=""):
    if not file:
        raise ConfigError("there is no file; write file: and the sensor's path", path="file")

    def open(activity):
        return lambda: int(Path(file).read_text()) / 1000

    return open


heat = Factor(_heat, options=("file",), levels=(Level(70, 20), Level(90, 100)), unit=" °C")
