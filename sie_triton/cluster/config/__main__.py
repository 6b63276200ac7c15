"""Run the config service with the settings of the environment."""

from sie_triton.cluster.config.run import run
from sie_triton.settings import read_settings

if __name__ == "__main__":
    run(read_settings())
