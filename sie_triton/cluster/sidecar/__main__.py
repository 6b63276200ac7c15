"""`python -m sie_triton.cluster.sidecar`: run a sidecar with the settings in its environment."""

from sie_triton.cluster.sidecar.run import run
from sie_triton.settings import read_settings

if __name__ == "__main__":
    run(read_settings())
