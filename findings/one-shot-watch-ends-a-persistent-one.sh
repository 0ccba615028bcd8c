#!/usr/bin/env bash
# ZooKeeper 3.8.0 (Debian's 3.8.0-11+deb12u2), asked by its own zkCli: a persistent watch tells of each change, until the same
# client also sets an ordinary, one-shot watch on the node. The next change fires once, and then the persistent watch is gone,
# without any event that would say so. A server keeps one kind of watch for each client and path: the later replaces the earlier.
#
# Seen: 2 events of 2 changes before, 1 event of 3 changes after. This fails if that is otherwise.
#
# It needs Debian 12, java and the network. Everything is in a temporary folder, and the server on loopback.

set -euo pipefail

work=$(mktemp -d)
server=''
trap '[[ -z $server ]] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"

apt-get download -qq libzookeeper-java=3.8.0-11+deb12u2 libslf4j-java libnetty-java libsnappy-java \
    libdropwizard-metrics-java libcommons-cli-java libcommons-io-java libjackson2-core-java libjetty9-java
for package in *.deb; do dpkg -x "$package" root; done
port=$((20000 + RANDOM % 10000))
mkdir data
printf '%s\n' tickTime=2000 "dataDir=$work/data" "clientPort=$port" clientPortAddress=127.0.0.1 admin.enableServer=false \
    "4lw.commands.whitelist=*" >zoo.cfg
java -cp "$work/root/usr/share/java/*" org.apache.zookeeper.server.quorum.QuorumPeerMain zoo.cfg >server.log 2>&1 &
server=$!

cli() {
    java -cp "$work/root/usr/share/java/*" org.apache.zookeeper.ZooKeeperMain -waitforconnection -server "127.0.0.1:$port" \
        2>&1 | grep -c 'type:NodeDataChanged path:/node' || true
}
before=$(printf '%s\n' 'create /node 0' 'addWatch -m PERSISTENT /node' 'set /node 1' 'set /node 2' 'get /elsewhere' quit | cli)
after=$(printf '%s\n' 'addWatch -m PERSISTENT /node' 'get -w /node' 'set /node 3' 'set /node 4' 'set /node 5' \
    'get /elsewhere' quit | cli)
echo "persistent watch alone: $before events of 2 changes; after a one-shot watch: $after of 3"
[[ $before == 2 && $after == 1 ]]
