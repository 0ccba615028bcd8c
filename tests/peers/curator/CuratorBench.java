import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.StringJoiner;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicLong;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.nodes.GroupMember;
import org.apache.curator.framework.recipes.queue.SimpleDistributedQueue;
import org.apache.curator.retry.RetryNTimes;

/** Acquires locks as often as Curator can. ../README.md lists the orders. */
final class CuratorBench {
    private static final int SESSION_MILLIS = 30_000;
    private static final int WAITS = 2_000;

    private final List<CuratorFramework> clients = new ArrayList<>();
    private volatile Exception failure;

    public static void main(String[] arguments) throws Exception {
        BlockingQueue<String> orders = new LinkedBlockingQueue<>();
        Thread listener = new Thread(() -> listen(orders));
        listener.setDaemon(true);
        listener.start();
        CuratorBench bench = new CuratorBench();
        answer("ready");
        while (true) {
            answer(bench.obey(orders.take().split(" ")));
        }
    }

    /** Ends the process at the end of its input, even while an order is carried out. */
    private static void listen(BlockingQueue<String> orders) {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        try {
            for (String order = input.readLine(); order != null; order = input.readLine()) {
                orders.add(order);
            }
        } catch (java.io.IOException gone) {
            // Handled like the end of the input.
        }
        Runtime.getRuntime().halt(0);
    }

    private static void answer(String line) {
        System.out.println("peer: " + line);
        System.out.flush();
    }

    private String obey(String[] words) throws Exception {
        switch (words[0]) {
            case "connect":
                connect(words[1], Integer.parseInt(words[2]));
                return "{}";
            case "close":
                close();
                return "{}";
            case "loop":
                return loop(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]),
                        Long.parseLong(words[4]));
            case "queue":
                return queue(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]));
            case "recipe":
                return recipe(words[1], words[2], Integer.parseInt(words[3]));
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private void connect(String hosts, int count) throws Exception {
        close();
        for (int index = 0; index < count; index++) {
            CuratorFramework client = CuratorFrameworkFactory.newClient(
                    hosts, SESSION_MILLIS, 15_000, new RetryNTimes(10, 200));
            client.start();
            clients.add(client);
            if (!client.blockUntilConnected(15, TimeUnit.SECONDS)) {
                throw new IllegalStateException("no connection");
            }
        }
    }

    private void close() {
        clients.forEach(CuratorFramework::close);
        clients.clear();
    }

    private interface Work {
        void run() throws Exception;
    }

    private Thread spawn(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception exception) {
                exception.printStackTrace();
                failure = exception;
            }
        });
        thread.start();
        return thread;
    }

    private String loop(String path, int locks, int threads, long millis) throws Exception {
        CountDownLatch start = new CountDownLatch(1);
        long[] operations = new long[threads];
        List<List<long[]>> waits = new ArrayList<>();
        List<Thread> working = new ArrayList<>();
        for (int index = 0; index < threads; index++) {
            int own = index;
            List<long[]> noted = new ArrayList<>();
            waits.add(noted);
            working.add(spawn(() -> {
                // An instance for each thread: one for all is far slower.
                InterProcessMutex lock = new InterProcessMutex(clients.get(0), path + "/" + own % locks);
                start.await();
                long begin = System.nanoTime();
                long count = 0;
                while (System.nanoTime() - begin < millis * 1_000_000) {
                    long asked = now();
                    lock.acquire();
                    if (noted.size() < WAITS / threads) {
                        noted.add(new long[] {asked, now()});
                    }
                    lock.release();
                    count++;
                }
                operations[own] = count;
            }));
        }
        long begin = System.nanoTime();
        start.countDown();
        for (Thread thread : working) {
            thread.join();
        }
        long sum = 0;
        for (long count : operations) {
            sum += count;
        }
        String said = said(sum, System.nanoTime() - begin);
        StringJoiner all = new StringJoiner(", ", "[", "]");
        waits.forEach(noted -> noted.forEach(wait -> all.add("[" + wait[0] + ", " + wait[1] + "]")));
        return said.substring(0, said.length() - 1) + ", \"waits\": " + all + "}";
    }

    /** Nanoseconds since 1970. */
    private static long now() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000_000 + now.getNano();
    }

    private String queue(String path, int waiters, int repeats) throws Exception {
        long nanos = 0;
        for (int repeat = 0; repeat < repeats; repeat++) {
            InterProcessMutex gate = new InterProcessMutex(clients.get(0), path);
            gate.acquire();
            List<Thread> working = new ArrayList<>();
            for (int index = 0; index < waiters; index++) {
                CuratorFramework client = clients.get(index % clients.size());
                working.add(spawn(() -> {
                    InterProcessMutex lock = new InterProcessMutex(client, path);
                    lock.acquire();
                    lock.release();
                }));
            }
            while (clients.get(0).getChildren().forPath(path).size() <= waiters) {
                Thread.sleep(50);
            }
            // The last waiters may not have set their watches yet.
            Thread.sleep(300);
            long begin = System.nanoTime();
            gate.release();
            for (Thread thread : working) {
                thread.join();
            }
            nanos += System.nanoTime() - begin;
        }
        return said((long) waiters * repeats, nanos);
    }

    private interface Share {
        void run(int own) throws Exception;
    }

    /** Runs so many threads, and returns how long the last one took. */
    private long together(int threads, Share share) throws Exception {
        long begin = System.nanoTime();
        List<Thread> working = new ArrayList<>();
        for (int index = 0; index < threads; index++) {
            int own = index;
            working.add(spawn(() -> share.run(own)));
        }
        for (Thread thread : working) {
            thread.join();
        }
        return System.nanoTime() - begin;
    }

    private String recipe(String recipe, String path, int count) throws Exception {
        int size = clients.size();
        switch (recipe) {
            case "take": {
                List<SimpleDistributedQueue> queues = new ArrayList<>();
                for (CuratorFramework client : clients) {
                    queues.add(new SimpleDistributedQueue(client, path));
                }
                together(size, own -> {
                    for (int item = own; item < count; item += size) {
                        queues.get(own).offer(Integer.toString(item).getBytes());
                    }
                });
                AtomicInteger taken = new AtomicInteger();
                return said(count, together(size, own -> {
                    while (taken.get() < count) {
                        if (queues.get(own).poll(200, TimeUnit.MILLISECONDS) != null) {
                            taken.incrementAndGet();
                        }
                    }
                }));
            }
            case "meet":
                return said(count, together(count, own -> {
                    DistributedDoubleBarrier barrier =
                            new DistributedDoubleBarrier(clients.get(own % size), path, count);
                    barrier.enter();
                    barrier.leave();
                }));
            case "add":
                return said(count, together(size, own -> {
                    DistributedAtomicLong counter =
                            new DistributedAtomicLong(clients.get(own), path, new RetryNTimes(10, 10));
                    for (int add = own; add < count; add += size) {
                        // It gives up after some attempts.
                        while (!counter.increment().succeeded()) {
                        }
                    }
                }));
            case "join": {
                List<GroupMember> members = new ArrayList<>();
                long begin = System.nanoTime();
                for (int own = 0; own < count; own++) {
                    GroupMember member = new GroupMember(clients.get(own % size), path, "member-" + own);
                    member.start();
                    members.add(member);
                }
                // It joins in the background, and each member keeps a list of all.
                while (members.get(0).getCurrentMembers().size() < count) {
                    Thread.sleep(5);
                }
                long nanos = System.nanoTime() - begin;
                members.forEach(GroupMember::close);
                return said(count, nanos);
            }
            case "permits":
                return said(count, together(count, own -> {
                    InterProcessSemaphoreV2 semaphore =
                            new InterProcessSemaphoreV2(clients.get(own % size), path, 3);
                    semaphore.returnLease(semaphore.acquire());
                }));
            default:
                throw new IllegalArgumentException(recipe);
        }
    }

    private String said(long operations, long nanos) throws Exception {
        if (failure != null) {
            throw failure;
        }
        return "{\"operations\": " + operations + ", \"seconds\": " + nanos / 1e9 + "}";
    }
}
