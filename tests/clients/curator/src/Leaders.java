import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;

/** Elections. */
final class Leaders {
  private Leaders() {}

  static void list(Map<String, Recipes.Recipe> recipes) {
    recipes.put("a LeaderLatch has one leader, and the next when it closes", Leaders::latch);
    recipes.put("a LeaderLatch passes on when its leader's session expires", Leaders::expiry);
    recipes.put("a LeaderSelector lets every candidate lead, one at a time", Leaders::selector);
  }

  private static List<LeaderLatch> latches(List<CuratorFramework> clients, String path) throws Exception {
    List<LeaderLatch> latches = new ArrayList<>();
    for (CuratorFramework client : clients) {
      LeaderLatch latch = new LeaderLatch(client, path, "member-" + latches.size());
      latch.start();
      latches.add(latch);
    }
    return latches;
  }

  private static LeaderLatch leader(List<LeaderLatch> latches) throws Exception {
    Check.eventually(() -> latches.stream().anyMatch(LeaderLatch::hasLeadership), "a leader in time");
    Check.same(1L, latches.stream().filter(LeaderLatch::hasLeadership).count(), "leaders");
    return latches.stream().filter(LeaderLatch::hasLeadership).findFirst().get();
  }

  private static void latch(List<CuratorFramework> clients, String path) throws Exception {
    List<LeaderLatch> latches = latches(clients, path);
    Check.eventually(() -> latches.get(0).getParticipants().size() == clients.size(), "all candidates");
    while (!latches.isEmpty()) {
      LeaderLatch leader = leader(latches);
      Check.same(leader.getId(), latches.get(0).getLeader().getId(), "the leader's name");
      latches.remove(leader);
      leader.close();
    }
  }

  private static void expiry(List<CuratorFramework> clients, String path) throws Exception {
    List<LeaderLatch> latches = latches(clients, path);
    LeaderLatch leader = leader(latches);
    CuratorFramework its = clients.get(latches.indexOf(leader));
    its.getZookeeperClient().getZooKeeper().close();
    List<LeaderLatch> others = new ArrayList<>(latches);
    others.remove(leader);
    leader(others);
    for (LeaderLatch latch : others) {
      latch.close();
    }
  }

  private static void selector(List<CuratorFramework> clients, String path) throws Exception {
    BlockingQueue<String> led = new LinkedBlockingQueue<>();
    AtomicInteger leading = new AtomicInteger();
    List<LeaderSelector> selectors = new ArrayList<>();
    for (CuratorFramework client : clients) {
      String name = "candidate-" + selectors.size();
      LeaderSelector selector = new LeaderSelector(client, path, new LeaderSelectorListenerAdapter() {
        @Override
        public void takeLeadership(CuratorFramework leader) throws Exception {
          led.add(leading.incrementAndGet() == 1 ? name : "two leaders");
          leader.checkExists().forPath(path);
          leading.decrementAndGet();
        }
      });
      selector.autoRequeue();
      selector.setId(name);
      selector.start();
      selectors.add(selector);
    }
    // A candidate that is slow to start has its turn later.
    Set<String> turns = new HashSet<>();
    long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(Check.SECONDS);
    for (int turn = 0; turn < 2 * clients.size() || turns.size() < clients.size(); turn++) {
      String name = led.poll(deadline - System.nanoTime(), TimeUnit.NANOSECONDS);
      Check.must(name != null, "each leads in time, after " + turns);
      Check.must(!name.equals("two leaders"), "one leader at a time");
      turns.add(name);
    }
    for (LeaderSelector selector : selectors) {
      Check.must(turns.contains(selector.getId()), selector.getId() + " led, of " + turns);
      selector.close();
    }
  }
}
