"""`python -m sie_triton.doors`: run one process of the door with the settings in its environment."""

from sie_triton.doors.run import run
from sie_triton.settings import read_settings

if __name__ == "__main__":
    run(read_settings())
