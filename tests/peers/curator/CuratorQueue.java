import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.NoSuchElementException;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.queue.SimpleDistributedQueue;
import org.apache.curator.retry.RetryNTimes;

/** Offers and takes items as Curator's queue does. ../README.md lists the orders. */
final class CuratorQueue {
    public static void main(String[] arguments) throws Exception {
        try (CuratorFramework client =
                CuratorFrameworkFactory.newClient(arguments[0], 10_000, 15_000, new RetryNTimes(10, 200))) {
            client.start();
            if (!client.blockUntilConnected(15, TimeUnit.SECONDS)) {
                throw new IllegalStateException("no connection");
            }
            answer("ready");
            BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
            for (String order = orders.readLine(); order != null; order = orders.readLine()) {
                answer(obey(client, order.split(" ")));
            }
        }
    }

    private static void answer(String line) {
        System.out.println("peer: " + line);
        System.out.flush();
    }

    private static String obey(CuratorFramework client, String[] words) throws Exception {
        SimpleDistributedQueue queue = new SimpleDistributedQueue(client, words[1]);
        int count = Integer.parseInt(words[2]);
        switch (words[0]) {
            case "offer":
                for (int number = 0; number < count; number++) {
                    if (!queue.offer(item(number))) {
                        return "not offered " + number;
                    }
                }
                return "offered " + count;
            case "take":
                return take(queue, count);
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static String take(SimpleDistributedQueue queue, int count) throws Exception {
        for (int number = 0; number < count; number++) {
            byte[] taken = number % 2 == 0 ? queue.take() : queue.poll(15, TimeUnit.SECONDS);
            if (!java.util.Arrays.equals(taken, item(number))) {
                return "other bytes at " + number;
            }
        }
        try {
            queue.element();
            return "more than " + count;
        } catch (NoSuchElementException none) {
            return "taken " + count;
        }
    }

    /** An item with as many bytes as its number; each depends on the number and its position. */
    private static byte[] item(int number) {
        byte[] item = new byte[number];
        for (int place = 0; place < number; place++) {
            item[place] = (byte) (number * 31 + place);
        }
        return item;
    }
}
