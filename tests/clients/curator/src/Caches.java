import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.cache.ChildData;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.cache.CuratorCacheListener;
import org.apache.curator.framework.recipes.cache.NodeCache;
import org.apache.curator.framework.recipes.cache.PathChildrenCache;
import org.apache.curator.framework.recipes.cache.PathChildrenCacheEvent;
import org.apache.curator.framework.recipes.cache.TreeCache;
import org.apache.curator.framework.recipes.cache.TreeCacheEvent;
import org.apache.curator.framework.recipes.watch.PersistentWatcher;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher.Event.EventType;

/** Caches, which follow nodes by watches. */
@SuppressWarnings("deprecation") // the older caches are what most programs have
final class Caches {
  private Caches() {}

  static void list(Map<String, Recipes.Recipe> recipes) {
    recipes.put("a PathChildrenCache sees children come, change and go", Caches::children);
    recipes.put("a NodeCache follows one node", Caches::node);
    recipes.put("a TreeCache follows a subtree", Caches::tree);
    recipes.put("a CuratorCache follows a subtree by one recursive watch", Caches::recursive);
    recipes.put("a CuratorCache of one node ignores its children", Caches::single);
    recipes.put("a CuratorCache catches up after a lost session", Caches::afterExpiry);
    recipes.put("a PersistentWatcher sees every change of a node and its children", Caches::persistent);
    recipes.put("a PersistentWatcher sees every change below a node", Caches::persistentRecursive);
  }

  private static <T> T next(BlockingQueue<T> events) throws Exception {
    T event = events.poll(Check.SECONDS, TimeUnit.SECONDS);
    Check.must(event != null, "an event in time");
    return event;
  }

  private static void children(List<CuratorFramework> clients, String path) throws Exception {
    BlockingQueue<PathChildrenCacheEvent.Type> events = new LinkedBlockingQueue<>();
    CuratorFramework actor = clients.get(1);
    try (PathChildrenCache cache = new PathChildrenCache(clients.get(0), path, true)) {
      cache.getListenable().addListener((client, event) -> events.add(event.getType()));
      cache.start(PathChildrenCache.StartMode.BUILD_INITIAL_CACHE);
      actor.create().forPath(path + "/a", Check.bytes("one"));
      Check.same(PathChildrenCacheEvent.Type.CHILD_ADDED, next(events), "told of the new child");
      actor.setData().forPath(path + "/a", Check.bytes("two"));
      Check.same(PathChildrenCacheEvent.Type.CHILD_UPDATED, next(events), "told of its change");
      Check.same("two", Check.text(cache.getCurrentData(path + "/a").getData()), "the new data");
      actor.delete().forPath(path + "/a");
      Check.same(PathChildrenCacheEvent.Type.CHILD_REMOVED, next(events), "told of its end");
    }
  }

  private static void node(List<CuratorFramework> clients, String path) throws Exception {
    CuratorFramework actor = clients.get(1);
    try (NodeCache cache = new NodeCache(clients.get(0), path)) {
      cache.start(true);
      Check.must(cache.getCurrentData() == null, "no node");
      actor.create().creatingParentsIfNeeded().forPath(path, Check.bytes("one"));
      Check.eventually(() -> cache.getCurrentData() != null, "the new node");
      actor.setData().forPath(path, Check.bytes("two"));
      Check.eventually(() -> Check.text(cache.getCurrentData().getData()).equals("two"), "the change");
      actor.delete().forPath(path);
      Check.eventually(() -> cache.getCurrentData() == null, "the end");
    }
  }

  private static void tree(List<CuratorFramework> clients, String path) throws Exception {
    CuratorFramework actor = clients.get(1);
    actor.create().creatingParentsIfNeeded().forPath(path + "/a/b", Check.bytes("one"));
    CountDownLatch initialized = new CountDownLatch(1);
    try (TreeCache cache = TreeCache.newBuilder(clients.get(0), path).build()) {
      cache.getListenable().addListener((client, event) -> {
        if (event.getType() == TreeCacheEvent.Type.INITIALIZED) {
          initialized.countDown();
        }
      });
      cache.start();
      Check.must(initialized.await(Check.SECONDS, TimeUnit.SECONDS), "filled");
      Check.same("one", Check.text(cache.getCurrentData(path + "/a/b").getData()), "the data");
      actor.create().creatingParentsIfNeeded().forPath(path + "/c/d/e", Check.bytes("deep"));
      Check.eventually(() -> cache.getCurrentData(path + "/c/d/e") != null, "new nodes");
      actor.setData().forPath(path + "/a/b", Check.bytes("two"));
      Check.eventually(() -> Check.text(cache.getCurrentData(path + "/a/b").getData()).equals("two"), "the change");
      actor.delete().deletingChildrenIfNeeded().forPath(path + "/c");
      Check.eventually(() -> cache.getCurrentChildren(path).keySet().equals(java.util.Set.of("a")), "the end");
    }
  }

  private static boolean holds(CuratorCache cache, String path, String data) {
    Optional<ChildData> found = cache.get(path);
    return found.isPresent() && Check.text(found.get().getData()).equals(data);
  }

  private static void recursive(List<CuratorFramework> clients, String path) throws Exception {
    CuratorFramework actor = clients.get(1);
    actor.create().creatingParentsIfNeeded().forPath(path + "/a/b", Check.bytes("one"));
    CountDownLatch initialized = new CountDownLatch(1);
    BlockingQueue<String> events = new LinkedBlockingQueue<>();
    try (CuratorCache cache = CuratorCache.build(clients.get(0), path)) {
      cache.listenable().addListener(CuratorCacheListener.builder()
          .forInitialized(initialized::countDown)
          .forCreates(node -> events.add("created " + node.getPath()))
          .forChanges((before, node) -> events.add("changed " + node.getPath()))
          .forDeletes(node -> events.add("deleted " + node.getPath()))
          .afterInitialized()
          .build());
      cache.start();
      Check.eventually(() -> holds(cache, path + "/a/b", "one"), "filled");
      Check.must(initialized.await(Check.SECONDS, TimeUnit.SECONDS), "initialised");
      actor.setData().forPath(path + "/a/b", Check.bytes("two"));
      Check.same("changed " + path + "/a/b", next(events), "the change");
      actor.create().forPath(path + "/a/c", Check.bytes("new"));
      Check.same("created " + path + "/a/c", next(events), "the new node");
      actor.delete().forPath(path + "/a/c");
      Check.same("deleted " + path + "/a/c", next(events), "the end");
      Check.must(holds(cache, path + "/a/b", "two") && cache.get(path + "/a/c").isEmpty(), "the nodes as they are");
      Check.same(3, cache.size(), "nodes in the cache");
    }
  }

  private static void single(List<CuratorFramework> clients, String path) throws Exception {
    CuratorFramework actor = clients.get(1);
    actor.create().creatingParentsIfNeeded().forPath(path, Check.bytes("one"));
    try (CuratorCache cache = CuratorCache.build(clients.get(0), path, CuratorCache.Options.SINGLE_NODE_CACHE)) {
      cache.start();
      Check.eventually(() -> holds(cache, path, "one"), "filled");
      actor.create().forPath(path + "/child");
      actor.setData().forPath(path, Check.bytes("two"));
      Check.eventually(() -> holds(cache, path, "two"), "the change");
      Check.same(1, cache.size(), "nodes in the cache");
    }
  }

  private static void afterExpiry(List<CuratorFramework> clients, String path) throws Exception {
    CuratorFramework actor = clients.get(1);
    actor.create().creatingParentsIfNeeded().forPath(path + "/a", Check.bytes("one"));
    try (CuratorCache cache = CuratorCache.build(clients.get(0), path)) {
      cache.start();
      Check.eventually(() -> holds(cache, path + "/a", "one"), "filled");
      Check.expire(clients.get(0));
      actor.setData().forPath(path + "/a", Check.bytes("two"));
      actor.create().forPath(path + "/b", Check.bytes("new"));
      Check.eventually(() -> holds(cache, path + "/a", "two") && holds(cache, path + "/b", "new"), "caught up");
    }
  }

  private static void persistent(List<CuratorFramework> clients, String path) throws Exception {
    CuratorFramework actor = clients.get(1);
    BlockingQueue<String> events = watched(clients.get(0), path, false);
    actor.create().creatingParentsIfNeeded().forPath(path);
    Check.same("NodeCreated " + path, next(events), "the node");
    for (int change = 0; change < 3; change++) {
      actor.setData().forPath(path, Check.bytes("change " + change));
      Check.same("NodeDataChanged " + path, next(events), "every change");
    }
    actor.create().forPath(path + "/a");
    Check.same("NodeChildrenChanged " + path, next(events), "a child");
    actor.setData().forPath(path + "/a", Check.bytes("unseen"));
    actor.delete().forPath(path + "/a");
    Check.same("NodeChildrenChanged " + path, next(events), "a child's end");
    actor.delete().forPath(path);
    Check.same("NodeDeleted " + path, next(events), "the end");
  }

  private static void persistentRecursive(List<CuratorFramework> clients, String path) throws Exception {
    CuratorFramework actor = clients.get(1);
    BlockingQueue<String> events = watched(clients.get(0), path, true);
    actor.create().creatingParentsIfNeeded().forPath(path + "/a/b");
    for (String created : List.of(path, path + "/a", path + "/a/b")) {
      Check.same("NodeCreated " + created, next(events), "each node");
    }
    actor.setData().forPath(path + "/a/b", Check.bytes("change"));
    Check.same("NodeDataChanged " + path + "/a/b", next(events), "a change below");
    actor.delete().deletingChildrenIfNeeded().forPath(path + "/a");
    Check.same("NodeDeleted " + path + "/a/b", next(events), "an end below");
    Check.same("NodeDeleted " + path + "/a", next(events), "an end below");
  }

  /** The events of a persistent watch, from the moment when it is set. */
  private static BlockingQueue<String> watched(CuratorFramework client, String path, boolean recursive) throws Exception {
    BlockingQueue<String> events = new LinkedBlockingQueue<>();
    CountDownLatch set = new CountDownLatch(1);
    PersistentWatcher watcher = new PersistentWatcher(client, path, recursive);
    watcher.getListenable().addListener((WatchedEvent event) -> {
      if (event.getType() != EventType.None) {
        events.add(event.getType() + " " + event.getPath());
      }
    });
    watcher.getResetListenable().addListener(set::countDown);
    watcher.start();
    Check.must(set.await(Check.SECONDS, TimeUnit.SECONDS), "the watch is set");
    return events;
  }
}
