from sie_triton.cli.main import main

main()
