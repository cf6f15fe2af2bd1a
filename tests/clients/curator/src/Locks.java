import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.barriers.DistributedBarrier;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;

/** Locks, semaphores and barriers. */
final class Locks {
  private static final int TURNS = 10;

  private Locks() {}

  static void list(Map<String, Recipes.Recipe> recipes) {
    recipes.put("one client at a time holds an InterProcessMutex", Locks::mutex);
    recipes.put("an InterProcessMutex asks its holder to give it up", Locks::revocation);
    recipes.put("one client at a time holds an InterProcessSemaphoreMutex", Locks::semaphoreMutex);
    recipes.put("an InterProcessReadWriteLock shares reads and excludes writes", Locks::readWrite);
    recipes.put("an InterProcessSemaphoreV2 admits as many as it has leases", Locks::semaphore);
    recipes.put("an InterProcessMultiLock holds all its locks or none", Locks::multiLock);
    recipes.put("a DistributedBarrier holds until it is removed", Locks::barrier);
    recipes.put("a DistributedDoubleBarrier lets all in and out together", Locks::doubleBarrier);
  }

  interface Maker {
    InterProcessLock lock(CuratorFramework client);
  }

  private static void excludes(List<CuratorFramework> clients, Maker maker) throws Exception {
    AtomicInteger inside = new AtomicInteger();
    AtomicInteger most = new AtomicInteger();
    Check.together(clients, client -> {
      InterProcessLock lock = maker.lock(client);
      for (int turn = 0; turn < TURNS; turn++) {
        Check.must(lock.acquire(Check.SECONDS, TimeUnit.SECONDS), "acquired");
        most.accumulateAndGet(inside.incrementAndGet(), Math::max);
        client.checkExists().forPath("/");
        inside.decrementAndGet();
        lock.release();
      }
    });
    Check.same(1, most.get(), "holders at a time");
  }

  private static void mutex(List<CuratorFramework> clients, String path) throws Exception {
    excludes(clients, client -> new InterProcessMutex(client, path));
    InterProcessMutex mutex = new InterProcessMutex(clients.get(0), path);
    mutex.acquire();
    mutex.acquire();
    mutex.release();
    Check.must(!new InterProcessMutex(clients.get(1), path).acquire(50, TimeUnit.MILLISECONDS), "held until the last release");
    clients.get(0).getZookeeperClient().getZooKeeper().close();
    Check.must(new InterProcessMutex(clients.get(1), path).acquire(Check.SECONDS, TimeUnit.SECONDS), "free with its session");
  }

  private static void revocation(List<CuratorFramework> clients, String path) throws Exception {
    InterProcessMutex held = new InterProcessMutex(clients.get(0), path);
    CountDownLatch asked = new CountDownLatch(1);
    held.makeRevocable(lock -> asked.countDown());
    held.acquire();
    Collection<String> holders = new InterProcessMutex(clients.get(1), path).getParticipantNodes();
    Check.same(1, holders.size(), "holders");
    Revoker.attemptRevoke(clients.get(1), holders.iterator().next());
    Check.must(asked.await(Check.SECONDS, TimeUnit.SECONDS), "the holder is asked");
  }

  private static void semaphoreMutex(List<CuratorFramework> clients, String path) throws Exception {
    excludes(clients, client -> new InterProcessSemaphoreMutex(client, path));
  }

  private static void readWrite(List<CuratorFramework> clients, String path) throws Exception {
    InterProcessReadWriteLock first = new InterProcessReadWriteLock(clients.get(0), path);
    InterProcessReadWriteLock second = new InterProcessReadWriteLock(clients.get(1), path);
    InterProcessReadWriteLock third = new InterProcessReadWriteLock(clients.get(2), path);
    first.readLock().acquire();
    Check.must(second.readLock().acquire(Check.SECONDS, TimeUnit.SECONDS), "two readers");
    Check.must(!third.writeLock().acquire(50, TimeUnit.MILLISECONDS), "no writer beside readers");
    first.readLock().release();
    second.readLock().release();
    Check.must(third.writeLock().acquire(Check.SECONDS, TimeUnit.SECONDS), "a writer alone");
    Check.must(!first.readLock().acquire(50, TimeUnit.MILLISECONDS), "no reader beside a writer");
    Check.must(third.readLock().acquire(Check.SECONDS, TimeUnit.SECONDS), "the writer may read");
    third.readLock().release();
    third.writeLock().release();
    excludes(clients, client -> new InterProcessReadWriteLock(client, path).writeLock());
  }

  private static void semaphore(List<CuratorFramework> clients, String path) throws Exception {
    InterProcessSemaphoreV2 first = new InterProcessSemaphoreV2(clients.get(0), path, 2);
    InterProcessSemaphoreV2 second = new InterProcessSemaphoreV2(clients.get(1), path, 2);
    Collection<Lease> both = first.acquire(2);
    Check.must(second.acquire(50, TimeUnit.MILLISECONDS) == null, "no third lease");
    Check.same(2, second.getParticipantNodes().size(), "leases");
    first.returnLease(both.iterator().next());
    Lease third = second.acquire(Check.SECONDS, TimeUnit.SECONDS);
    Check.must(third != null, "a lease that was returned");
    second.returnLease(third);
    first.returnAll(both);
  }

  private static void multiLock(List<CuratorFramework> clients, String path) throws Exception {
    List<String> paths = Arrays.asList(path + "/one", path + "/two");
    InterProcessMutex single = new InterProcessMutex(clients.get(1), path + "/two");
    InterProcessMultiLock all = new InterProcessMultiLock(clients.get(0), paths);
    single.acquire();
    Check.must(!all.acquire(50, TimeUnit.MILLISECONDS), "none of them while one is held");
    Check.must(new InterProcessMutex(clients.get(2), path + "/one").acquire(Check.SECONDS, TimeUnit.SECONDS), "the other one free");
    single.release();
    excludes(clients.subList(0, 2), client -> new InterProcessMultiLock(client, Arrays.asList(path + "/a", path + "/b")));
  }

  private static void barrier(List<CuratorFramework> clients, String path) throws Exception {
    DistributedBarrier barrier = new DistributedBarrier(clients.get(0), path);
    barrier.setBarrier();
    Check.must(!new DistributedBarrier(clients.get(1), path).waitOnBarrier(50, TimeUnit.MILLISECONDS), "it holds");
    Check.together(clients, client -> {
      if (client == clients.get(0)) {
        barrier.removeBarrier();
      } else {
        Check.must(new DistributedBarrier(client, path).waitOnBarrier(Check.SECONDS, TimeUnit.SECONDS), "it ends");
      }
    });
  }

  private static void doubleBarrier(List<CuratorFramework> clients, String path) throws Exception {
    AtomicInteger inside = new AtomicInteger();
    Check.together(clients, client -> {
      DistributedDoubleBarrier barrier = new DistributedDoubleBarrier(client, path, clients.size());
      inside.incrementAndGet();
      Check.must(barrier.enter(Check.SECONDS, TimeUnit.SECONDS), "entered");
      Check.same(clients.size(), inside.get(), "clients at the barrier");
      Check.must(barrier.leave(Check.SECONDS, TimeUnit.SECONDS), "left");
    });
  }
}
