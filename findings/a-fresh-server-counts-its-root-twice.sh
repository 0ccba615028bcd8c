#!/usr/bin/env bash
# ZooKeeper 3.8.0 (Debian's 3.8.0-11+deb12u2), new and empty: `mntr` and `srvr` count five nodes, where `ls -R /` of its own zkCli
# finds four (/, /zookeeper, /zookeeper/config, /zookeeper/quota): the root is counted twice. And the root's cversion, the number
# of changes of its children, begins at -1: the server's own node below it was made by no request. A check that no node is left,
# or code that takes a cversion for a count, meets both.
#
# Seen: 5 counted, 4 listed, cversion -1. This fails if that is otherwise.
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

said=$(printf '%s\n' 'ls -R /' 'stat /' quit |
    java -cp "$work/root/usr/share/java/*" org.apache.zookeeper.ZooKeeperMain -waitforconnection \
        -server "127.0.0.1:$port" 2>/dev/null)
listed=$(grep -c '^/' <<<"$said")
cversion=$(sed -n 's/^cversion = //p' <<<"$said")
exec 3<>"/dev/tcp/127.0.0.1/$port"
printf mntr >&3
counted=$(sed -n 's/^zk_znode_count\t//p' <&3)
echo "$counted counted, $listed listed, cversion of the root $cversion"
[[ $counted == 5 && $listed == 4 && $cversion == -1 ]]
