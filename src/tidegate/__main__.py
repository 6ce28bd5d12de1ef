"""`python -m tidegate`: the command, where its script is not on the path."""

from tidegate.cli.main import main

if __name__ == "__main__":
    main()
