import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicLong;
import org.apache.curator.framework.recipes.cache.PathChildrenCache;
import org.apache.curator.framework.recipes.cache.PathChildrenCacheEvent.Type;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Apache Curator's recipes against a running server: {@code Recipes HOST:PORT}.
 *
 * <p>Prints a line per recipe and a last one that counts. Parents are plain nodes
 * ({@code dontUseContainerParents}), so that it also runs where containers are not offered.
 */
@SuppressWarnings("deprecation") // PathChildrenCache is what works with plain watches
public final class Recipes {
  private static final int CLIENTS = 3;
  private static final int TURNS = 10;
  /** Only a recipe that hangs reaches it. */
  private static final int SECONDS = 120;

  interface Recipe {
    void run(List<CuratorFramework> clients) throws Exception;
  }

  public static void main(String[] arguments) throws Exception {
    List<CuratorFramework> clients = new ArrayList<>();
    for (int i = 0; i < CLIENTS; i++) {
      CuratorFramework client = CuratorFrameworkFactory.builder()
          .connectString(arguments[0])
          .retryPolicy(new ExponentialBackoffRetry(50, 5))
          .dontUseContainerParents()
          .build();
      client.start();
      must(client.blockUntilConnected(SECONDS, TimeUnit.SECONDS), "connected");
      clients.add(client);
    }
    int failed = 0;
    failed += passes("only one client at a time holds an InterProcessMutex", Recipes::mutex, clients);
    failed += passes("a LeaderLatch has one leader, and the next when it closes", Recipes::leaderLatch, clients);
    failed += passes("a SharedCount is seen by every client", Recipes::sharedCount, clients);
    failed += passes("a DistributedAtomicLong misses no addition", Recipes::atomicLong, clients);
    failed += passes("a PathChildrenCache sees children come, change and go", Recipes::childrenCache, clients);
    for (CuratorFramework client : clients) {
      client.close();
    }
    System.out.println((5 - failed) + " passed, " + failed + " failed");
    System.exit(failed);
  }

  private static void mutex(List<CuratorFramework> clients) throws Exception {
    AtomicInteger inside = new AtomicInteger();
    AtomicInteger most = new AtomicInteger();
    together(clients, client -> {
      InterProcessMutex mutex = new InterProcessMutex(client, "/curator/mutex");
      for (int turn = 0; turn < TURNS; turn++) {
        must(mutex.acquire(SECONDS, TimeUnit.SECONDS), "acquired");
        most.accumulateAndGet(inside.incrementAndGet(), Math::max);
        client.checkExists().forPath("/curator");
        inside.decrementAndGet();
        mutex.release();
      }
    });
    must(most.get() == 1, "one holder at a time, not " + most.get());
  }

  private static void leaderLatch(List<CuratorFramework> clients) throws Exception {
    List<LeaderLatch> latches = new ArrayList<>();
    for (CuratorFramework client : clients) {
      LeaderLatch latch = new LeaderLatch(client, "/curator/latch", "member-" + latches.size());
      latch.start();
      latches.add(latch);
    }
    while (!latches.isEmpty()) {
      LeaderLatch leader = null;
      long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
      while (leader == null) {
        must(System.nanoTime() < deadline, "a leader in time");
        for (LeaderLatch latch : latches) {
          leader = latch.await(10, TimeUnit.MILLISECONDS) ? latch : leader;
        }
      }
      must(latches.stream().filter(LeaderLatch::hasLeadership).count() == 1, "one leader");
      latches.remove(leader);
      leader.close();
    }
  }

  private static void sharedCount(List<CuratorFramework> clients) throws Exception {
    List<SharedCount> counts = new ArrayList<>();
    for (CuratorFramework client : clients) {
      SharedCount count = new SharedCount(client, "/curator/count", 7);
      count.start();
      counts.add(count);
    }
    must(counts.stream().allMatch(count -> count.getCount() == 7), "the seed value");
    counts.get(0).setCount(8);
    eventually(() -> counts.stream().allMatch(count -> count.getCount() == 8), "the new value everywhere");
    must(counts.get(1).trySetCount(counts.get(1).getVersionedValue(), 9), "a set of the current version");
    for (SharedCount count : counts) {
      count.close();
    }
  }

  private static void atomicLong(List<CuratorFramework> clients) throws Exception {
    together(clients, client -> {
      ExponentialBackoffRetry retry = new ExponentialBackoffRetry(5, 29, 100);
      DistributedAtomicLong number = new DistributedAtomicLong(client, "/curator/long", retry);
      for (int turn = 0; turn < TURNS; turn++) {
        must(number.increment().succeeded(), "incremented");
      }
    });
    ExponentialBackoffRetry retry = new ExponentialBackoffRetry(5, 5);
    long value = new DistributedAtomicLong(clients.get(0), "/curator/long", retry).get().postValue();
    must(value == CLIENTS * TURNS, "the sum, not " + value);
  }

  private static void childrenCache(List<CuratorFramework> clients) throws Exception {
    BlockingQueue<Type> events = new LinkedBlockingQueue<>();
    clients.get(1).create().creatingParentsIfNeeded().forPath("/curator/children");
    try (PathChildrenCache cache = new PathChildrenCache(clients.get(0), "/curator/children", true)) {
      cache.getListenable().addListener((client, event) -> events.add(event.getType()));
      cache.start(PathChildrenCache.StartMode.BUILD_INITIAL_CACHE);
      clients.get(1).create().forPath("/curator/children/a", "one".getBytes());
      must(events.poll(SECONDS, TimeUnit.SECONDS) == Type.CHILD_ADDED, "told of the new child");
      clients.get(1).setData().forPath("/curator/children/a", "two".getBytes());
      must(events.poll(SECONDS, TimeUnit.SECONDS) == Type.CHILD_UPDATED, "told of its change");
      must(new String(cache.getCurrentData("/curator/children/a").getData()).equals("two"), "the new data");
      clients.get(1).delete().forPath("/curator/children/a");
      must(events.poll(SECONDS, TimeUnit.SECONDS) == Type.CHILD_REMOVED, "told of its end");
    }
  }

  interface Work {
    void run(CuratorFramework client) throws Exception;
  }

  interface Condition {
    boolean holds();
  }

  private static void together(List<CuratorFramework> clients, Work work) throws Exception {
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
    threads.shutdown();
    for (Future<?> result : results) {
      result.get(2 * SECONDS, TimeUnit.SECONDS);
    }
  }

  private static void eventually(Condition condition, String what) throws InterruptedException {
    long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
    while (!condition.holds()) {
      must(System.nanoTime() < deadline, what);
      Thread.sleep(10);
    }
  }

  private static int passes(String name, Recipe recipe, List<CuratorFramework> clients) {
    try {
      recipe.run(clients);
      System.out.println("ok: " + name);
      return 0;
    } catch (Exception | AssertionError failure) {
      System.out.println("FAILED: " + name + ": " + failure);
      return 1;
    }
  }

  private static void must(boolean held, String what) {
    if (!held) {
      throw new AssertionError("expected: " + what);
    }
  }
}
