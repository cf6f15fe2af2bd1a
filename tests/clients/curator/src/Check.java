import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.zookeeper.ZooKeeper;

/** What every recipe's test needs: assertions, waiting, and several clients at once. */
final class Check {
  /** Only a recipe that hangs reaches it. */
  static final int SECONDS = 30;

  private Check() {}

  interface Work {
    void run(CuratorFramework client) throws Exception;
  }

  interface Condition {
    boolean holds() throws Exception;
  }

  static void must(boolean held, String what) {
    if (!held) {
      throw new AssertionError("expected: " + what);
    }
  }

  static void same(Object wanted, Object seen, String what) {
    must(wanted.equals(seen), what + ": " + wanted + ", not " + seen);
  }

  static void eventually(Condition condition, String what) throws Exception {
    long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
    while (!condition.holds()) {
      must(System.nanoTime() < deadline, what);
      Thread.sleep(10);
    }
  }

  /** Runs the work of every client in a thread of its own, and waits for all. */
  static void together(List<CuratorFramework> clients, Work work) throws Exception {
    ExecutorService threads = Executors.newFixedThreadPool(clients.size());
    CountDownLatch start = new CountDownLatch(1);
    List<Future<?>> results = new ArrayList<>();
    for (CuratorFramework client : clients) {
      results.add(threads.submit(() -> {
        start.await();
        work.run(client);
        return null;
      }));
    }
    start.countDown();
    try {
      for (Future<?> result : results) {
        result.get(SECONDS, TimeUnit.SECONDS);
      }
    } finally {
      threads.shutdownNow();
    }
  }

  /**
   * Ends the client's session at the server, as if it had expired: by closing it from another connection.
   *
   * <p>The server drops the client's connection for the other one. A client that comes back before the close takes the
   * session away from it, so the close is repeated until the client has seen the end.
   */
  static void expire(CuratorFramework client) throws Exception {
    ZooKeeper its = client.getZookeeperClient().getZooKeeper();
    long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
    while (its.getState().isAlive()) {
      must(System.nanoTime() < deadline, "the end of the session");
      CountDownLatch connected = new CountDownLatch(1);
      ZooKeeper second = new ZooKeeper(client.getZookeeperClient().getCurrentConnectionString(), SECONDS * 1000,
          event -> connected.countDown(), its.getSessionId(), its.getSessionPasswd());
      must(connected.await(SECONDS, TimeUnit.SECONDS), "the session on another connection");
      second.close();
      // A client comes back within a second.
      for (int poll = 0; poll < 200 && its.getState().isAlive(); poll++) {
        Thread.sleep(10);
      }
    }
  }

  static byte[] bytes(String text) {
    return text.getBytes(java.nio.charset.StandardCharsets.UTF_8);
  }

  static String text(byte[] bytes) {
    return new String(bytes, java.nio.charset.StandardCharsets.UTF_8);
  }
}
