"""The gateway: the door's routes and Triton's gRPC, with the queue behind them."""
