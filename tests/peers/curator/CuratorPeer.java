import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.RetryNTimes;

/** Acquires locks as Curator does. ../README.md lists the orders. */
final class CuratorPeer {
    private final CuratorFramework client;
    private InterProcessLock held;

    private CuratorPeer(CuratorFramework client) {
        this.client = client;
    }

    public static void main(String[] arguments) throws Exception {
        try (CuratorFramework client =
                CuratorFrameworkFactory.newClient(arguments[0], 10_000, 15_000, new RetryNTimes(10, 200))) {
            client.start();
            if (!client.blockUntilConnected(15, TimeUnit.SECONDS)) {
                throw new IllegalStateException("no connection");
            }
            new CuratorPeer(client).listen();
        }
    }

    private void listen() throws Exception {
        answer("ready");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            String[] words = order.split(" ");
            answer(obey(words));
        }
    }

    private static void answer(String line) {
        System.out.println("peer: " + line);
        System.out.flush();
    }

    private String obey(String[] words) throws Exception {
        switch (words[0]) {
            case "lock":
                held = lock(words[1], words[2]);
                held.acquire();
                return "held";
            case "try":
                held = lock(words[1], words[2]);
                return held.acquire(Long.parseLong(words[3]), TimeUnit.MILLISECONDS) ? "held" : "not";
            case "release":
                held.release();
                return "released";
            case "leader":
                return new Leadership(words[1]).selector.getLeader().getId();
            case "work":
                return work(words[1], words[2], Integer.parseInt(words[3]), Path.of(words[4]));
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private InterProcessLock lock(String path, String kind) {
        switch (kind) {
            case "mutex":
                return new InterProcessMutex(client, path);
            case "read":
                return new InterProcessReadWriteLock(client, path).readLock();
            case "write":
                return new InterProcessReadWriteLock(client, path).writeLock();
            case "leader":
                return new Leadership(path);
            default:
                throw new IllegalArgumentException(kind);
        }
    }

    private String work(String path, String kind, int rounds, Path counter) throws Exception {
        boolean mixed = kind.equals("mixed");
        InterProcessLock write = lock(path, mixed ? "write" : kind);
        InterProcessLock read = mixed ? lock(path, "read") : null;
        int taken = 0;
        for (int round = 0; round < rounds; round++) {
            InterProcessLock lock = mixed && round % 5 != 0 ? read : write;
            lock.acquire();
            try {
                String before = Files.readString(counter);
                if (lock == read) {
                    Thread.yield();
                    if (!Files.readString(counter).equals(before)) {
                        return "torn";
                    }
                } else {
                    String[] words = before.split(" ");
                    taken += words[1].equals("curator") ? 0 : 1;
                    Files.writeString(counter, Long.parseLong(words[0]) + 1 + " curator");
                }
            } finally {
                lock.release();
            }
        }
        return "done " + taken;
    }

    /** Curator's LeaderSelector, behind the interface of a lock. */
    private final class Leadership implements InterProcessLock {
        private final CountDownLatch leads = new CountDownLatch(1);
        private final CountDownLatch resigns = new CountDownLatch(1);
        private final LeaderSelector selector;

        Leadership(String path) {
            selector = new LeaderSelector(client, path, new LeaderSelectorListenerAdapter() {
                @Override
                public void takeLeadership(CuratorFramework ignored) throws InterruptedException {
                    leads.countDown();
                    resigns.await();
                }
            });
            selector.setId("curator");
        }

        @Override
        public void acquire() throws Exception {
            selector.start();
            leads.await();
        }

        @Override
        public boolean acquire(long time, TimeUnit unit) throws Exception {
            selector.start();
            boolean inTime = leads.await(time, unit);
            if (!inTime) {
                selector.close();
            }
            return inTime;
        }

        @Override
        public void release() {
            resigns.countDown();
        }

        @Override
        public boolean isAcquiredInThisProcess() {
            return selector.hasLeadership();
        }
    }
}
