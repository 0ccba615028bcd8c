"""A plugin for pytest: it starts the server for a client's own tests, and writes down what became of each.

Of the environment it reads:

  JUDGED_SERVER   `java` for ZooKeeper's own server, or the path of `zookeeper-in-memory`
  JUDGED_RESULTS  where it writes one line for each test: its result, whether it opened a connection, and its name
  JUDGED_JARS     for `java`: the folder of ZooKeeper's jars
"""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref

import pytest

SERVER = os.environ["JUDGED_SERVER"]
RESULTS = os.environ["JUDGED_RESULTS"]
JARS = os.environ.get("JUDGED_JARS", "/usr/share/java")
CLASSPATH = ":".join(
    os.path.join(JARS, name + ".jar")
    # The manifest of the first names the others, except for a logger and parts of Netty.
    for name in (
        "zookeeper",
        "slf4j-simple",
        "netty-codec",
        "netty-resolver",
        "netty-transport-native-unix-common",
    )
)
# A server has to serve after so many seconds.
READY_LIMIT = 60


def free_ports(count):
    """The first of so many ports in a row that are free now, below those that clients are given."""
    for first in range(20000 + os.getpid() % 800 * 10, 32000, 10):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for at, one in enumerate(sockets):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind(("127.0.0.1", first + at))
            return first
        except OSError:
            pass
        finally:
            for one in sockets:
                one.close()
    raise RuntimeError("no free ports")


PORT = free_ports(5)
# The second is that for TLS in kazoo's harness.
ADDRESSES = ("127.0.0.1", PORT), ("127.0.0.1", PORT + 4)
# Where aiozk's tests look for the server, as soon as they are imported.
os.environ.update(ZK_HOST="127.0.0.1", ZK_PORT=str(PORT))


class Server:
    """One server on PORT, as kazoo's harness wants a node of its cluster to be."""

    def __init__(self):
        self.process = None
        self.folder = None

    address = "127.0.0.1:%d" % PORT
    # Nobody listens there: it speaks no TLS.
    secure_address = "127.0.0.1:%d" % (PORT + 4)

    @property
    def running(self):
        return self.process is not None

    def run(self):
        if self.running:
            return
        self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        limit = time.monotonic() + READY_LIMIT
        while not self.serves():
            if self.process.poll() is not None or time.monotonic() > limit:
                raise RuntimeError("the server did not start")
            time.sleep(0.02)

    def command(self):
        if SERVER != "java":
            return [SERVER, "--port", str(PORT)]
        self.folder = tempfile.TemporaryDirectory()
        config = os.path.join(self.folder.name, "zoo.cfg")
        with open(config, "w") as file:
            file.write(
                "dataDir=%s\nclientPort=%d\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n"
                "admin.enableServer=false\n4lw.commands.whitelist=*\n"
                % (os.path.join(self.folder.name, "data"), PORT)
            )
        return [
            "java",
            "-Xmx256m",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
            "-cp",
            CLASSPATH,
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            config,
        ]

    def serves(self):
        try:
            with socket.create_connection(("127.0.0.1", PORT), 1) as connection:
                connection.sendall(b"srvr")
                return b"Mode: standalone" in connection.makefile("rb").read()
        except OSError:
            return False

    def stop(self):
        """Ends it. What the server in memory holds ends with it."""
        if self.running:
            self.process.terminate()
            self.process.wait()
            self.process = None

    def reset(self):
        self.stop()

    def destroy(self):
        self.stop()

    def get_logs(self, num_lines=100):
        return []


class Cluster:
    """What kazoo's harness takes for its ensemble: one server."""

    def __init__(self, **_ignored):
        self.servers = [Server()]

    def __getitem__(self, place):
        return self.servers[place]

    def __iter__(self):
        return iter(self.servers)

    def start(self):
        for server in self:
            server.run()

    def stop(self):
        for server in self:
            server.stop()

    terminate = reset = stop

    def get_logs(self):
        return []

    def get_ssl_client_configuration(self):
        pytest.skip("the server speaks no TLS")


class Judge:
    """Notes what became of each test, and whether it opened a connection to the server."""

    def __init__(self):
        self.results = {}
        self.opened = False
        # Threads that earlier tests have left, and which may still try to connect.
        self.left = weakref.WeakSet()
        # Sees all connections of this process, of whichever kind its sockets are.
        sys.addaudithook(self.hook)

    def hook(self, name, arguments):
        if name == "socket.connect" and arguments[1] in ADDRESSES:
            if threading.current_thread() not in self.left:
                self.opened = True

    def pytest_runtest_logstart(self, nodeid):
        self.opened = False
        self.left = weakref.WeakSet(threading.enumerate())
        self.left.discard(threading.main_thread())
        self.results[nodeid] = ("passed", False)

    def pytest_runtest_logreport(self, report):
        result, _ = self.results[report.nodeid]
        if report.failed:
            result = "failed"
        elif report.skipped and result == "passed":
            result = "skipped"
        self.results[report.nodeid] = (result, self.opened)

    def pytest_sessionfinish(self):
        with open(RESULTS, "w") as file:
            for name, (result, opened) in self.results.items():
                file.write("%s\t%s\t%s\n" % (result, "connects" if opened else "-", name))


def has_kazoo():
    try:
        import kazoo  # noqa: F401
    except ImportError:
        return False
    return True


def prepare_kazoo():
    os.environ.update(
        ZOOKEEPER_CLASSPATH=CLASSPATH,
        ZOOKEEPER_VERSION="3.8.0",
        ZOOKEEPER_PORT_OFFSET=str(PORT),
        ZOOKEEPER_CLUSTER_SIZE="1",
    )
    # Java's servers are started by kazoo's harness as it does it.
    if SERVER != "java":
        import kazoo.testing.common
        import kazoo.testing.harness

        kazoo.testing.common.ZookeeperCluster = Cluster
        kazoo.testing.harness.ZookeeperCluster = Cluster


def pytest_configure(config):
    config.pluginmanager.register(Judge())
    if has_kazoo():
        prepare_kazoo()
        return
    server = Server()
    server.run()
    config.add_cleanup(server.stop)
