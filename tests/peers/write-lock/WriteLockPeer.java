import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.recipes.lock.LockListener;
import org.apache.zookeeper.recipes.lock.WriteLock;

/** Acquires locks as ZooKeeper's own WriteLock does. ../README.md lists the orders. */
public class WriteLockPeer {
    private final ZooKeeper client;
    private WriteLock held;

    WriteLockPeer(ZooKeeper client) {
        this.client = client;
    }

    /** Whether it is held in time. */
    private boolean acquire(WriteLock lock, long millis) throws Exception {
        CountDownLatch isHeld = new CountDownLatch(1);
        lock.setLockListener(new LockListener() {
            @Override
            public void lockAcquired() {
                isHeld.countDown();
            }

            @Override
            public void lockReleased() {}
        });
        if (lock.lock() || isHeld.await(millis, TimeUnit.MILLISECONDS)) {
            return true;
        }
        lock.unlock();
        // Otherwise it queues again by itself, when the node that it watched is gone.
        lock.close();
        return false;
    }

    private WriteLock lock(String path) {
        return new WriteLock(client, path, ZooDefs.Ids.OPEN_ACL_UNSAFE);
    }

    private String obey(String[] words) throws Exception {
        switch (words[0]) {
            case "lock":
            case "try":
                held = lock(words[1]);
                long millis = words[0].equals("try") ? Long.parseLong(words[3]) : Long.MAX_VALUE;
                return acquire(held, millis) ? "held" : "not";
            case "release":
                held.unlock();
                return "released";
            case "work":
                return work(words[1], Integer.parseInt(words[3]), Path.of(words[4]));
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private String work(String path, int rounds, Path counter) throws Exception {
        int taken = 0;
        for (int round = 0; round < rounds; round++) {
            WriteLock lock = lock(path);
            acquire(lock, Long.MAX_VALUE);
            String[] before = Files.readString(counter).split(" ");
            taken += before[1].equals("write-lock") ? 0 : 1;
            Files.writeString(counter, (Integer.parseInt(before[0]) + 1) + " write-lock");
            lock.unlock();
        }
        return "done " + taken;
    }

    public static void main(String[] arguments) throws Exception {
        CountDownLatch isConnected = new CountDownLatch(1);
        ZooKeeper client = new ZooKeeper(arguments[0], 10_000, event -> {
            if (event.getState() == Watcher.Event.KeeperState.SyncConnected) {
                isConnected.countDown();
            }
        });
        isConnected.await();
        WriteLockPeer peer = new WriteLockPeer(client);
        System.out.println("peer: ready");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            System.out.println("peer: " + peer.obey(line.split(" ")));
        }
        client.close();
    }
}
