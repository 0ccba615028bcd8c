"""Counts what became of a client's tests, and fails if one that should pass did not.

  count.py SUITE SERVER RESULTS
"""

import os
import sys

# The least share of the tests that open a connection which has to pass on the server in memory.
WANTED = 0.9


def listed(name):
    """The tests in a list, with why they are in it."""
    tests = {}
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    with open(path) as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                test, _, reason = line.strip().partition("  ")
                tests[test] = reason.strip()
    return tests


def main(suite, server, results):
    not_counted = listed(suite + "-not-counted.txt")
    # On ZooKeeper's own server, all that count have to pass.
    not_passed = {} if server == "java" else listed(suite + "-not-passed.txt")
    found, connected = {}, set(not_passed)
    with open(results) as file:
        for line in file:
            result, opened, test = line.rstrip("\n").split("\t")
            found[test] = result
            if opened == "connects":
                connected.add(test)

    counted = connected - set(not_counted)
    passed = {test for test in counted if found.get(test) == "passed"}
    print(
        "%d tests, of which %d open a connection; %d of these count, and %d of them passed (%.1f %%)"
        % (len(found), len(connected), len(counted), len(passed), 100 * len(passed) / max(len(counted), 1))
    )
    listed_tests = {**not_counted, **not_passed}
    wrong = ["%s: %s" % item for item in found.items() if item[1] != "passed" and item[0] not in listed_tests]
    wrong += ["%s: it is listed, but there is no such test" % test for test in listed_tests if test not in found]
    for test in not_passed:
        if found.get(test) == "passed":
            print("%s is listed, and passed" % test)
    for line in wrong:
        print(line)
    if len(passed) < WANTED * len(counted):
        print("fewer passed than %d %%" % (100 * WANTED))
        return 1
    return 1 if wrong or not counted else 0


sys.exit(main(*sys.argv[1:]))
