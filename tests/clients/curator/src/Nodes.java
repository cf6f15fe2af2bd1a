import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.nodes.GroupMember;
import org.apache.curator.framework.recipes.nodes.PersistentNode;
import org.apache.curator.framework.recipes.nodes.PersistentTtlNode;
import org.apache.curator.x.discovery.ServiceCache;
import org.apache.curator.x.discovery.ServiceDiscovery;
import org.apache.curator.x.discovery.ServiceDiscoveryBuilder;
import org.apache.curator.x.discovery.ServiceInstance;
import org.apache.curator.x.discovery.ServiceProvider;
import org.apache.curator.x.discovery.strategies.RoundRobinStrategy;
import org.apache.zookeeper.CreateMode;

/** Nodes that a recipe keeps, groups, and service discovery. */
final class Nodes {
  private Nodes() {}

  static void list(Map<String, Recipes.Recipe> recipes) {
    recipes.put("a PersistentNode comes back when somebody deletes it", Nodes::persistentNode);
    recipes.put("a PersistentNode comes back after its session expired", Nodes::persistentNodeAfterExpiry);
    recipes.put("a PersistentTtlNode stays while its owner touches it", Nodes::ttlNode);
    recipes.put("a GroupMember sees the members that are there", Nodes::group);
    recipes.put("ServiceDiscovery names the instances that are there", Nodes::discovery);
    recipes.put("a ServiceProvider takes the instances in turns", Nodes::provider);
  }

  private static void persistentNode(List<CuratorFramework> clients, String path) throws Exception {
    PersistentNode node = new PersistentNode(clients.get(0), CreateMode.EPHEMERAL, false, path, Check.bytes("one"));
    node.start();
    Check.must(node.waitForInitialCreate(Check.SECONDS, TimeUnit.SECONDS), "created");
    long first = clients.get(1).checkExists().forPath(path).getCzxid();
    clients.get(1).delete().forPath(path);
    Check.eventually(() -> {
      var stat = clients.get(1).checkExists().forPath(path);
      return stat != null && stat.getCzxid() > first;
    }, "created again");
    node.setData(Check.bytes("two"));
    Check.eventually(() -> Check.text(clients.get(1).getData().forPath(path)).equals("two"), "its new data");
    node.close();
    Check.must(clients.get(1).checkExists().forPath(path) == null, "deleted");
  }

  private static void persistentNodeAfterExpiry(List<CuratorFramework> clients, String path) throws Exception {
    CuratorFramework owner = clients.get(0);
    PersistentNode node = new PersistentNode(owner, CreateMode.EPHEMERAL, false, path, Check.bytes("one"));
    node.start();
    Check.must(node.waitForInitialCreate(Check.SECONDS, TimeUnit.SECONDS), "created");
    long session = owner.getZookeeperClient().getZooKeeper().getSessionId();
    Check.same(session, clients.get(1).checkExists().forPath(path).getEphemeralOwner(), "its session");
    Check.expire(owner);
    Check.eventually(() -> {
      var stat = clients.get(1).checkExists().forPath(path);
      return stat != null && stat.getEphemeralOwner() != session;
    }, "created by the next session");
    node.close();
  }

  private static void ttlNode(List<CuratorFramework> clients, String path) throws Exception {
    try (PersistentTtlNode node = new PersistentTtlNode(clients.get(0), path, 2_000, Check.bytes("one"))) {
      node.start();
      Check.must(node.waitForInitialCreate(Check.SECONDS, TimeUnit.SECONDS), "created");
      long first = clients.get(1).checkExists().forPath(path).getCzxid();
      String touched = path + "/" + PersistentTtlNode.DEFAULT_CHILD_NODE_NAME;
      Check.eventually(() -> {
        var stat = clients.get(1).checkExists().forPath(touched);
        return stat != null && stat.getVersion() > 1;
      }, "touched");
      Check.same(first, clients.get(1).checkExists().forPath(path).getCzxid(), "the same node");
      Check.same("one", Check.text(clients.get(1).getData().forPath(path)), "its data");
    }
  }

  private static void group(List<CuratorFramework> clients, String path) throws Exception {
    GroupMember first = new GroupMember(clients.get(0), path, "first", Check.bytes("1"));
    GroupMember second = new GroupMember(clients.get(1), path, "second", Check.bytes("2"));
    first.start();
    second.start();
    Check.eventually(() -> first.getCurrentMembers().keySet().equals(Set.of("first", "second")), "both");
    // The others may see a member before it has the reply to its create.
    Check.eventually(() -> {
      try {
        second.setThisData(Check.bytes("3"));
        return true;
      } catch (IllegalStateException early) {
        return false;
      }
    }, "the reply to the create");
    Check.eventually(() -> Check.text(first.getCurrentMembers().get("second")).equals("3"), "the new data");
    second.close();
    Check.eventually(() -> first.getCurrentMembers().keySet().equals(Set.of("first")), "the one that is left");
    first.close();
  }

  private static ServiceDiscovery<String> services(CuratorFramework client, String path) throws Exception {
    ServiceDiscovery<String> discovery =
        ServiceDiscoveryBuilder.builder(String.class).client(client).basePath(path).watchInstances(true).build();
    discovery.start();
    return discovery;
  }

  private static ServiceInstance<String> instance(String id, int port) throws Exception {
    return ServiceInstance.<String>builder().name("shop").id(id).address("127.0.0.1").port(port).payload(id).build();
  }

  private static void discovery(List<CuratorFramework> clients, String path) throws Exception {
    try (ServiceDiscovery<String> first = services(clients.get(0), path);
        ServiceDiscovery<String> second = services(clients.get(1), path)) {
      first.registerService(instance("one", 1));
      try (ServiceCache<String> cache = second.serviceCacheBuilder().name("shop").build()) {
        cache.start();
        Check.eventually(() -> cache.getInstances().size() == 1, "the first instance");
        ServiceInstance<String> two = instance("two", 2);
        first.registerService(two);
        Check.eventually(() -> cache.getInstances().size() == 2, "both");
        Check.same(List.of("shop"), List.copyOf(second.queryForNames()), "services");
        Check.same(2, second.queryForInstance("shop", "two").getPort(), "its port");
        first.unregisterService(two);
        Check.eventually(() -> cache.getInstances().size() == 1, "the one that is left");
        Check.expire(clients.get(0));
        Check.eventually(() -> second.queryForInstances("shop").size() == 1, "registered again by the next session");
      }
    }
  }

  private static void provider(List<CuratorFramework> clients, String path) throws Exception {
    try (ServiceDiscovery<String> discovery = services(clients.get(0), path);
        ServiceDiscovery<String> asking = services(clients.get(1), path)) {
      discovery.registerService(instance("one", 1));
      discovery.registerService(instance("two", 2));
      try (ServiceProvider<String> provider = asking.serviceProviderBuilder().serviceName("shop")
          .providerStrategy(new RoundRobinStrategy<>()).build()) {
        provider.start();
        Check.eventually(() -> provider.getAllInstances().size() == 2, "both");
        String first = provider.getInstance().getId();
        Check.must(!first.equals(provider.getInstance().getId()), "the other in turn");
      }
    }
  }
}
