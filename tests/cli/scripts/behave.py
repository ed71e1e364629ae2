"""Does what its argument says, to see that it is done as under `python`."""

import atexit
import sys
from multiprocessing import get_context


def fail():
    raise ValueError("on purpose")


def square(n):
    return n * n


def main():
    print(sys.argv[1:], __name__, __file__, __spec__ and __spec__.name, sys.path[0], __package__)
    atexit.register(print, "the end")
    match sys.argv[1]:
        case "raise":
            fail()
        case "exit":
            sys.exit(5)
        case "complain":
            sys.exit("cannot go on")
        case "interrupt":
            raise KeyboardInterrupt
        case "spawn":
            with get_context("spawn").Pool(1) as pool:
                print(pool.map(square, [3]))


if __name__ == "__main__":
    main()
