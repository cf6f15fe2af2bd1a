import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Apache Curator's recipes against a running server: {@code Recipes HOST:PORT [WORDS]}.
 *
 * <p>Prints a line per recipe and a last one that counts. WORDS selects the recipes whose name holds them.
 */
public final class Recipes {
  private static final int CLIENTS = 3;

  /** A recipe's test: it gets clients of three sessions and a path of its own. */
  interface Recipe {
    void run(List<CuratorFramework> clients, String path) throws Exception;
  }

  public static void main(String[] arguments) throws Exception {
    Map<String, Recipe> recipes = new LinkedHashMap<>();
    Locks.list(recipes);
    Leaders.list(recipes);
    Queues.list(recipes);
    Numbers.list(recipes);
    Caches.list(recipes);
    Nodes.list(recipes);
    Operations.list(recipes);
    // No run finds the nodes of another.
    String base = "/curator/" + System.currentTimeMillis() + "-";
    int passed = 0;
    int failed = 0;
    for (Map.Entry<String, Recipe> recipe : recipes.entrySet()) {
      if (arguments.length > 1 && !recipe.getKey().contains(arguments[1])) {
        continue;
      }
      if (passes(arguments[0], recipe.getKey(), recipe.getValue(), base + (passed + failed))) {
        passed++;
      } else {
        failed++;
      }
    }
    System.out.println(passed + " passed, " + failed + " failed");
    System.exit(Math.min(failed, 100));
  }

  private static List<CuratorFramework> connected(String hosts) throws Exception {
    List<CuratorFramework> clients = new ArrayList<>();
    for (int i = 0; i < CLIENTS; i++) {
      CuratorFramework client = CuratorFrameworkFactory.builder()
          .connectString(hosts)
          .retryPolicy(new ExponentialBackoffRetry(50, 3))
          .build();
      client.start();
      clients.add(client);
    }
    for (CuratorFramework client : clients) {
      Check.must(client.blockUntilConnected(Check.SECONDS, TimeUnit.SECONDS), "connected");
    }
    return clients;
  }

  private static boolean passes(String hosts, String name, Recipe recipe, String path) throws Exception {
    ExecutorService thread = Executors.newSingleThreadExecutor(task -> {
      Thread daemon = new Thread(task);
      daemon.setDaemon(true);
      return daemon;
    });
    List<CuratorFramework> clients = connected(hosts);
    long start = System.nanoTime();
    try {
      Future<?> result = thread.submit(() -> {
        recipe.run(clients, path);
        return null;
      });
      result.get(2 * Check.SECONDS, TimeUnit.SECONDS);
      System.out.println("ok: " + name + ", " + TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - start) + " ms");
      return true;
    } catch (TimeoutException slow) {
      System.out.println("FAILED: " + name + ": it hangs");
      return false;
    } catch (Exception failure) {
      Throwable cause = failure.getCause() == null ? failure : failure.getCause();
      System.out.println("FAILED: " + name + ": " + cause);
      if (System.getenv("TRACES") != null) {
        cause.printStackTrace(System.out);
      }
      return false;
    } finally {
      thread.shutdownNow();
      for (CuratorFramework client : clients) {
        client.close();
      }
    }
  }
}
