import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.api.CuratorWatcher;
import org.apache.curator.framework.api.transaction.CuratorTransactionResult;
import org.apache.curator.framework.api.transaction.OperationType;
import org.apache.curator.retry.RetryNTimes;
import org.apache.curator.x.async.AsyncCuratorFramework;
import org.apache.curator.x.async.AsyncWrappers;
import org.apache.curator.x.async.WatchMode;
import org.apache.curator.x.async.api.CreateOption;
import org.apache.curator.x.async.modeled.JacksonModelSerializer;
import org.apache.curator.x.async.modeled.ModelSpec;
import org.apache.curator.x.async.modeled.ModeledFramework;
import org.apache.curator.x.async.modeled.ZPath;
import org.apache.curator.x.async.modeled.cached.CachedModeledFramework;
import org.apache.zookeeper.AddWatchMode;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.data.Stat;

/** The operations that Curator itself offers: transactions, modes, ACLs, watches, and the asynchronous client. */
final class Operations {
  private Operations() {}

  static void list(Map<String, Recipes.Recipe> recipes) {
    recipes.put("a transaction commits whole", Operations::transaction);
    recipes.put("a transaction that fails changes nothing and names the reason", Operations::failedTransaction);
    recipes.put("parents are containers, and other modes are as asked for", Operations::modes);
    recipes.put("a protected create is found again by its name", Operations::protection);
    recipes.put("idempotent operations pass a second time", Operations::idempotent);
    recipes.put("an ACL keeps other users out", Operations::acls);
    recipes.put("a namespace is a subtree", Operations::namespace);
    recipes.put("watches are added and removed by name", Operations::watches);
    recipes.put("the ensemble's configuration is read", Operations::configuration);
    recipes.put("background operations call back in order", Operations::background);
    recipes.put("the AsyncCuratorFramework completes its stages", Operations::async);
    recipes.put("the AsyncCuratorFramework commits transactions", Operations::asyncTransaction);
    recipes.put("a ModeledFramework keeps objects", Operations::modeled);
  }

  private static void transaction(List<CuratorFramework> clients, String path) throws Exception {
    CuratorFramework client = clients.get(0);
    client.create().creatingParentsIfNeeded().forPath(path, Check.bytes("old"));
    List<CuratorTransactionResult> results = client.transaction().forOperations(
        client.transactionOp().check().withVersion(0).forPath(path),
        client.transactionOp().create().forPath(path + "/a", Check.bytes("one")),
        client.transactionOp().create().withMode(CreateMode.EPHEMERAL_SEQUENTIAL).forPath(path + "/s-"),
        client.transactionOp().setData().forPath(path + "/a", Check.bytes("two")),
        client.transactionOp().create().forPath(path + "/b"),
        client.transactionOp().delete().forPath(path + "/b"),
        client.transactionOp().setData().withVersion(0).forPath(path, Check.bytes("new")));
    Check.same(7, results.size(), "results");
    Check.same(path + "/s-0000000001", results.get(2).getResultPath(), "the name given");
    Check.same(OperationType.SET_DATA, results.get(3).getType(), "an operation");
    Check.same(1, results.get(3).getResultStat().getVersion(), "a version");
    Check.same("two", Check.text(clients.get(1).getData().forPath(path + "/a")), "the data");
    Stat parent = clients.get(1).checkExists().forPath(path);
    Stat child = clients.get(1).checkExists().forPath(path + "/a");
    Check.same(parent.getMzxid(), child.getCzxid(), "one zxid");
    Check.same(2, parent.getNumChildren(), "children");
  }

  private static void failedTransaction(List<CuratorFramework> clients, String path) throws Exception {
    CuratorFramework client = clients.get(0);
    client.create().creatingParentsIfNeeded().forPath(path);
    try {
      client.transaction().forOperations(
          client.transactionOp().create().forPath(path + "/a"),
          client.transactionOp().setData().withVersion(7).forPath(path),
          client.transactionOp().delete().forPath(path + "/a"));
      Check.must(false, "a refusal");
    } catch (KeeperException.BadVersionException refused) {
      List<Integer> codes = refused.getResults().stream()
          .map(result -> ((org.apache.zookeeper.OpResult.ErrorResult) result).getErr()).toList();
      Check.same(List.of(0, KeeperException.Code.BADVERSION.intValue(), KeeperException.Code.RUNTIMEINCONSISTENCY.intValue()),
          codes, "the errors");
    }
    Check.must(client.checkExists().forPath(path + "/a") == null, "nothing changed");
  }

  private static void modes(List<CuratorFramework> clients, String path) throws Exception {
    CuratorFramework client = clients.get(0);
    client.create().creatingParentContainersIfNeeded().forPath(path + "/container/child");
    Check.same(0L, client.checkExists().forPath(path + "/container").getEphemeralOwner(), "what a client sees of a container");
    client.create().withMode(CreateMode.CONTAINER).forPath(path + "/empty");
    client.create().withTtl(600_000).withMode(CreateMode.PERSISTENT_WITH_TTL).forPath(path + "/ttl");
    String name = client.create().withTtl(600_000).withMode(CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL).forPath(path + "/ttl-");
    Check.same(path + "/ttl-0000000003", name, "the name given");
    Stat stat = new Stat();
    client.create().storingStatIn(stat).withMode(CreateMode.EPHEMERAL).forPath(path + "/ephemeral");
    Check.same(client.getZookeeperClient().getZooKeeper().getSessionId(), stat.getEphemeralOwner(), "the owner");
    try {
      client.create().forPath(path + "/ephemeral/child");
      Check.must(false, "a refusal");
    } catch (KeeperException.NoChildrenForEphemeralsException refused) {
      Check.same(path + "/ephemeral/child", refused.getPath(), "the path");
    }
    Check.same(5, client.getChildren().forPath(path).size(), "children");
    client.create().orSetData().forPath(path + "/empty", Check.bytes("set"));
    Check.same("set", Check.text(client.getData().forPath(path + "/empty")), "the data");
    client.delete().guaranteed().deletingChildrenIfNeeded().forPath(path);
    Check.must(client.checkExists().forPath(path) == null, "all deleted");
  }

  private static void protection(List<CuratorFramework> clients, String path) throws Exception {
    CuratorFramework client = clients.get(0);
    String name = client.create().creatingParentsIfNeeded().withProtection().withMode(CreateMode.EPHEMERAL_SEQUENTIAL)
        .forPath(path + "/p-");
    Check.same(List.of(name.substring(path.length() + 1)), client.getChildren().forPath(path), "the one node");
  }

  private static void idempotent(List<CuratorFramework> clients, String path) throws Exception {
    CuratorFramework client = clients.get(0);
    for (int turn = 0; turn < 2; turn++) {
      client.create().idempotent().creatingParentsIfNeeded().forPath(path, Check.bytes("one"));
    }
    for (int turn = 0; turn < 2; turn++) {
      client.setData().idempotent().withVersion(0).forPath(path, Check.bytes("two"));
    }
    for (int turn = 0; turn < 2; turn++) {
      client.delete().idempotent().withVersion(1).forPath(path);
    }
  }

  private static void acls(List<CuratorFramework> clients, String path) throws Exception {
    String hosts = clients.get(0).getZookeeperClient().getCurrentConnectionString();
    try (CuratorFramework owner = CuratorFrameworkFactory.builder().connectString(hosts)
        .retryPolicy(new RetryNTimes(3, 50)).authorization("digest", Check.bytes("owner:secret")).build()) {
      owner.start();
      owner.create().creatingParentsIfNeeded().withACL(ZooDefs.Ids.CREATOR_ALL_ACL).forPath(path, Check.bytes("secret"));
      var acl = owner.getACL().forPath(path);
      Check.same("digest", acl.get(0).getId().getScheme(), "the scheme");
      Check.must(acl.get(0).getId().getId().startsWith("owner:"), "the user");
      try {
        clients.get(1).getData().forPath(path);
        Check.must(false, "a refusal");
      } catch (KeeperException.NoAuthException refused) {
        Check.same(path, refused.getPath(), "the path");
      }
      Stat stat = owner.setACL().withVersion(0).withACL(ZooDefs.Ids.READ_ACL_UNSAFE).forPath(path);
      Check.same(1, stat.getAversion(), "the ACL's version");
      Check.same("secret", Check.text(clients.get(1).getData().forPath(path)), "the data");
      try {
        clients.get(1).setData().forPath(path, Check.bytes("no"));
        Check.must(false, "a refusal");
      } catch (KeeperException.NoAuthException refused) {
        Check.same(path, refused.getPath(), "the path");
      }
    }
  }

  private static void namespace(List<CuratorFramework> clients, String path) throws Exception {
    CuratorFramework below = clients.get(0).usingNamespace(path.substring(1));
    below.create().creatingParentsIfNeeded().forPath("/a/b", Check.bytes("one"));
    Check.same("one", Check.text(clients.get(1).getData().forPath(path + "/a/b")), "the data");
    String hosts = clients.get(0).getZookeeperClient().getCurrentConnectionString();
    try (CuratorFramework chroot = CuratorFrameworkFactory.newClient(hosts + path, new RetryNTimes(3, 50))) {
      chroot.start();
      Check.same(List.of("b"), chroot.getChildren().forPath("/a"), "children below a chroot");
    }
  }

  private static void watches(List<CuratorFramework> clients, String path) throws Exception {
    CuratorFramework client = clients.get(0);
    CuratorFramework actor = clients.get(1);
    client.create().creatingParentsIfNeeded().forPath(path);
    BlockingQueue<String> events = new LinkedBlockingQueue<>();
    CuratorWatcher once = event -> events.add("once " + event.getType());
    CuratorWatcher removed = event -> events.add("removed " + event.getType());
    Watcher every = event -> events.add("every " + event.getType() + " " + event.getPath());
    client.watchers().add().withMode(AddWatchMode.PERSISTENT_RECURSIVE).usingWatcher(every).forPath(path);
    client.getData().usingWatcher(once).forPath(path);
    client.getChildren().usingWatcher(removed).forPath(path);
    client.watchers().remove(removed).ofType(Watcher.WatcherType.Children).forPath(path);
    Check.same("removed ChildWatchRemoved", events.poll(Check.SECONDS, TimeUnit.SECONDS), "the removal");
    actor.create().forPath(path + "/a");
    Check.same("every NodeCreated " + path + "/a", events.poll(Check.SECONDS, TimeUnit.SECONDS), "the child");
    actor.setData().forPath(path, Check.bytes("one"));
    List<String> both = List.of(events.poll(Check.SECONDS, TimeUnit.SECONDS), events.poll(Check.SECONDS, TimeUnit.SECONDS));
    Check.must(both.contains("once NodeDataChanged") && both.contains("every NodeDataChanged " + path), "both, not " + both);
    client.watchers().remove(every).ofType(Watcher.WatcherType.Any).forPath(path);
    Check.same("every PersistentWatchRemoved " + path, events.poll(Check.SECONDS, TimeUnit.SECONDS), "the removal");
    try {
      client.watchers().remove(every).forPath(path);
      Check.must(false, "a refusal");
    } catch (KeeperException.NoWatcherException refused) {
      Check.same(path, refused.getPath(), "the path");
    }
    actor.setData().forPath(path, Check.bytes("two"));
    client.sync().forPath(path);
    Check.must(events.isEmpty(), "no more events, not " + events);
  }

  private static void configuration(List<CuratorFramework> clients, String path) throws Exception {
    Check.must(clients.get(0).getConfig().forEnsemble() != null, "a configuration, though it may be empty");
  }

  private static void background(List<CuratorFramework> clients, String path) throws Exception {
    CuratorFramework client = clients.get(0);
    BlockingQueue<String> results = new LinkedBlockingQueue<>();
    client.create().creatingParentsIfNeeded().forPath(path);
    for (int number = 0; number < 50; number++) {
      String child = path + "/" + number;
      client.create().inBackground((same, event) -> results.add(event.getType() + " " + event.getPath())).forPath(child);
    }
    client.sync().inBackground((same, event) -> results.add(event.getType() + " " + event.getPath())).forPath(path);
    for (int number = 0; number < 50; number++) {
      Check.same("CREATE " + path + "/" + number, results.poll(Check.SECONDS, TimeUnit.SECONDS), "in order");
    }
    Check.same("SYNC " + path, results.poll(Check.SECONDS, TimeUnit.SECONDS), "the sync");
  }

  private static <T> T done(CompletionStage<T> stage) throws Exception {
    return stage.toCompletableFuture().get(Check.SECONDS, TimeUnit.SECONDS);
  }

  private static void async(List<CuratorFramework> clients, String path) throws Exception {
    AsyncCuratorFramework async = AsyncCuratorFramework.wrap(clients.get(0));
    done(async.create().withOptions(java.util.Set.of(CreateOption.createParentsAsContainers)).forPath(path, Check.bytes("one")));
    Check.same("one", Check.text(done(async.getData().forPath(path))), "the data");
    CountDownLatch changed = new CountDownLatch(1);
    async.with(WatchMode.successOnly).watched().checkExists().forPath(path).event().thenAccept(event -> changed.countDown());
    Check.same(1, done(async.setData().forPath(path, Check.bytes("two"))).getVersion(), "the version");
    Check.must(changed.await(Check.SECONDS, TimeUnit.SECONDS), "the watch fires");
    Map<String, byte[]> children = done(AsyncWrappers.childrenWithData(async, path));
    Check.must(children.isEmpty(), "no children");
    CountDownLatch seen = new CountDownLatch(1);
    done(async.addWatch().withMode(AddWatchMode.PERSISTENT).usingWatcher((Watcher) event -> seen.countDown()).forPath(path));
    done(async.delete().forPath(path));
    Check.must(seen.await(Check.SECONDS, TimeUnit.SECONDS), "the persistent watch fires");
    Check.must(done(async.checkExists().forPath(path)) == null, "deleted");
  }

  private static void asyncTransaction(List<CuratorFramework> clients, String path) throws Exception {
    AsyncCuratorFramework async = AsyncCuratorFramework.wrap(clients.get(0));
    clients.get(0).createContainers(path);
    List<CuratorTransactionResult> results = done(async.transaction().forOperations(List.of(
        async.transactionOp().create().forPath(path + "/a"),
        async.transactionOp().setData().forPath(path + "/a", Check.bytes("one")),
        async.transactionOp().check().withVersion(1).forPath(path + "/a"))));
    Check.same(3, results.size(), "results");
    try {
      done(async.transaction().forOperations(List.of(async.transactionOp().delete().forPath(path + "/missing"))));
      Check.must(false, "a refusal");
    } catch (java.util.concurrent.ExecutionException refused) {
      Check.must(refused.getCause() instanceof KeeperException.NoNodeException, "the reason, not " + refused.getCause());
    }
  }

  /** What a ModeledFramework keeps. */
  public static final class Item {
    public String name;
    public int count;
  }

  private static void modeled(List<CuratorFramework> clients, String path) throws Exception {
    ModelSpec<Item> spec =
        ModelSpec.builder(ZPath.parse(path + "/item"), JacksonModelSerializer.build(Item.class)).build();
    ModeledFramework<Item> items = ModeledFramework.wrap(AsyncCuratorFramework.wrap(clients.get(0)), spec);
    Item item = new Item();
    item.name = "bolt";
    item.count = 3;
    done(items.set(item));
    Check.same(3, done(ModeledFramework.wrap(AsyncCuratorFramework.wrap(clients.get(1)), spec).read()).count, "the count");
    CachedModeledFramework<Item> cached = items.cached();
    cached.start();
    item.count = 4;
    done(items.update(item));
    Check.eventually(() -> {
      Item found = done(cached.readThrough());
      return found.count == 4;
    }, "the change in the cache");
    cached.close();
  }
}
