import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.atomic.AtomicValue;
import org.apache.curator.framework.recipes.atomic.CachedAtomicLong;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicInteger;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicLong;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicValue;
import org.apache.curator.framework.recipes.atomic.PromotedToLock;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.framework.recipes.shared.SharedValue;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.curator.retry.RetryNTimes;

/** Counters and shared values. */
final class Numbers {
  private static final int TURNS = 10;

  private Numbers() {}

  static void list(Map<String, Recipes.Recipe> recipes) {
    recipes.put("a SharedCount is seen by every client", Numbers::sharedCount);
    recipes.put("a SharedValue changes only from the version that was read", Numbers::sharedValue);
    recipes.put("a DistributedAtomicLong misses no addition", Numbers::atomicLong);
    recipes.put("a DistributedAtomicInteger takes a lock where it conflicts", Numbers::promoted);
    recipes.put("a DistributedAtomicValue is compared and set", Numbers::atomicValue);
    recipes.put("a CachedAtomicLong gives each number once", Numbers::cachedLong);
  }

  private static void sharedCount(List<CuratorFramework> clients, String path) throws Exception {
    List<SharedCount> counts = new ArrayList<>();
    for (CuratorFramework client : clients) {
      SharedCount count = new SharedCount(client, path, 7);
      count.start();
      counts.add(count);
    }
    Check.must(counts.stream().allMatch(count -> count.getCount() == 7), "the seed value");
    counts.get(0).setCount(8);
    Check.eventually(() -> counts.stream().allMatch(count -> count.getCount() == 8), "the new value everywhere");
    Check.must(counts.get(1).trySetCount(counts.get(1).getVersionedValue(), 9), "a set of the current version");
    for (SharedCount count : counts) {
      count.close();
    }
  }

  private static void sharedValue(List<CuratorFramework> clients, String path) throws Exception {
    try (SharedValue first = new SharedValue(clients.get(0), path, Check.bytes("seed"));
        SharedValue second = new SharedValue(clients.get(1), path, Check.bytes("seed"))) {
      first.start();
      second.start();
      var old = second.getVersionedValue();
      first.setValue(Check.bytes("first"));
      Check.must(!second.trySetValue(old, Check.bytes("second")), "a set of an old version is refused");
      Check.eventually(() -> Check.text(second.getValue()).equals("first"), "the value of the other");
    }
  }

  private static void atomicLong(List<CuratorFramework> clients, String path) throws Exception {
    Check.together(clients, client -> {
      DistributedAtomicLong number = new DistributedAtomicLong(client, path, new ExponentialBackoffRetry(5, 29, 100));
      for (int turn = 0; turn < TURNS; turn++) {
        Check.must(number.increment().succeeded(), "incremented");
      }
    });
    long value = new DistributedAtomicLong(clients.get(0), path, new RetryNTimes(5, 5)).get().postValue();
    Check.same((long) clients.size() * TURNS, value, "the sum");
  }

  private static void promoted(List<CuratorFramework> clients, String path) throws Exception {
    PromotedToLock lock =
        PromotedToLock.builder().lockPath(path + "/lock").retryPolicy(new RetryNTimes(100, 10)).build();
    Check.together(clients, client -> {
      DistributedAtomicInteger number = new DistributedAtomicInteger(client, path + "/number", new RetryNTimes(1, 1), lock);
      for (int turn = 0; turn < TURNS; turn++) {
        Check.must(number.add(2).succeeded(), "added");
      }
    });
    int value = new DistributedAtomicInteger(clients.get(0), path + "/number", new RetryNTimes(5, 5)).get().postValue();
    Check.same(2 * clients.size() * TURNS, value, "the sum");
  }

  private static void atomicValue(List<CuratorFramework> clients, String path) throws Exception {
    DistributedAtomicValue value = new DistributedAtomicValue(clients.get(0), path, new RetryNTimes(5, 5));
    Check.must(value.initialize(Check.bytes("one")), "initialised");
    Check.must(!value.initialize(Check.bytes("two")), "initialised once");
    AtomicValue<byte[]> changed = value.compareAndSet(Check.bytes("one"), Check.bytes("three"));
    Check.must(changed.succeeded(), "a set of the current value");
    Check.must(!value.compareAndSet(Check.bytes("one"), Check.bytes("four")).succeeded(), "a set of an old value is refused");
  }

  private static void cachedLong(List<CuratorFramework> clients, String path) throws Exception {
    List<Long> seen = new ArrayList<>();
    for (CuratorFramework client : clients) {
      CachedAtomicLong cached = new CachedAtomicLong(new DistributedAtomicLong(client, path, new RetryNTimes(5, 5)), 5);
      for (int turn = 0; turn < TURNS; turn++) {
        seen.add(cached.next().postValue());
      }
    }
    Check.same((long) seen.size(), seen.stream().distinct().count(), "different numbers");
  }
}
