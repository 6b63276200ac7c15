"""`python -m sie_triton.cluster.gateway`: run one process of the gateway with the settings in its environment."""

from sie_triton.cluster.gateway.run import run
from sie_triton.settings import read_settings

if __name__ == "__main__":
    run(read_settings())
