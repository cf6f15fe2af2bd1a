import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.queue.DistributedDelayQueue;
import org.apache.curator.framework.recipes.queue.DistributedIdQueue;
import org.apache.curator.framework.recipes.queue.DistributedPriorityQueue;
import org.apache.curator.framework.recipes.queue.DistributedQueue;
import org.apache.curator.framework.recipes.queue.QueueBuilder;
import org.apache.curator.framework.recipes.queue.QueueConsumer;
import org.apache.curator.framework.recipes.queue.QueueSerializer;
import org.apache.curator.framework.recipes.queue.SimpleDistributedQueue;
import org.apache.curator.framework.state.ConnectionState;

/** Queues. */
@SuppressWarnings("deprecation") // its users still have them
final class Queues {
  private static final int ITEMS = 20;

  private Queues() {}

  static void list(Map<String, Recipes.Recipe> recipes) {
    recipes.put("a DistributedQueue gives each item to one consumer, in order", Queues::queue);
    recipes.put("a DistributedQueue with a lock gives an item again that failed", Queues::lockSafety);
    recipes.put("a DistributedQueue takes several items at once", Queues::several);
    recipes.put("a DistributedIdQueue removes an item by its id", Queues::idQueue);
    recipes.put("a DistributedPriorityQueue gives urgent items first", Queues::priorityQueue);
    recipes.put("a DistributedDelayQueue keeps an item until its time", Queues::delayQueue);
    recipes.put("a SimpleDistributedQueue offers, peeks, polls and takes", Queues::simpleQueue);
  }

  private static final QueueSerializer<String> TEXT = new QueueSerializer<>() {
    @Override
    public byte[] serialize(String item) {
      return Check.bytes(item);
    }

    @Override
    public String deserialize(byte[] bytes) {
      return Check.text(bytes);
    }
  };

  private static QueueBuilder<String> into(BlockingQueue<String> taken, CuratorFramework client, String path) {
    return QueueBuilder.builder(client, new QueueConsumer<>() {
      @Override
      public void consumeMessage(String message) {
        taken.add(message);
      }

      @Override
      public void stateChanged(CuratorFramework changed, ConnectionState state) {}
    }, TEXT, path);
  }

  private static List<String> next(BlockingQueue<String> taken, int count) throws Exception {
    List<String> items = new ArrayList<>();
    while (items.size() < count) {
      String item = taken.poll(Check.SECONDS, TimeUnit.SECONDS);
      Check.must(item != null, count + " items, after " + items);
      items.add(item);
    }
    return items;
  }

  private static void queue(List<CuratorFramework> clients, String path) throws Exception {
    BlockingQueue<String> taken = new LinkedBlockingQueue<>();
    DistributedQueue<String> putting =
        QueueBuilder.<String>builder(clients.get(0), null, TEXT, path).putInBackground(false).buildQueue();
    putting.start();
    List<String> wanted = new ArrayList<>();
    for (int item = 0; item < ITEMS; item++) {
      putting.put("item-" + item);
      wanted.add("item-" + item);
    }
    DistributedQueue<String> taking = into(taken, clients.get(1), path).buildQueue();
    taking.start();
    Check.same(wanted, next(taken, ITEMS), "the items");
    DistributedQueue<String> beside = into(taken, clients.get(2), path).buildQueue();
    beside.start();
    for (int item = 0; item < ITEMS; item++) {
      putting.put("item-" + item);
    }
    List<String> shared = next(taken, ITEMS);
    Check.must(shared.containsAll(wanted), "every item once, not " + shared);
    putting.close();
    taking.close();
    beside.close();
  }

  private static void lockSafety(List<CuratorFramework> clients, String path) throws Exception {
    BlockingQueue<String> taken = new LinkedBlockingQueue<>();
    DistributedQueue<String> queue = QueueBuilder.builder(clients.get(0), new QueueConsumer<String>() {
      private boolean failed;

      @Override
      public void consumeMessage(String message) throws Exception {
        if (!failed) {
          failed = true;
          throw new Exception("the first attempt fails");
        }
        taken.add(message);
      }

      @Override
      public void stateChanged(CuratorFramework changed, ConnectionState state) {}
    }, TEXT, path + "/queue").lockPath(path + "/locks").buildQueue();
    queue.start();
    queue.put("again");
    Check.same(List.of("again"), next(taken, 1), "the item");
    queue.close();
  }

  private static void several(List<CuratorFramework> clients, String path) throws Exception {
    BlockingQueue<String> taken = new LinkedBlockingQueue<>();
    DistributedQueue<String> queue = into(taken, clients.get(0), path).maxItems(5).buildQueue();
    queue.start();
    queue.putMulti(new org.apache.curator.framework.recipes.queue.MultiItem<>() {
      private int item;

      @Override
      public String nextItem() {
        return item < 3 ? "item-" + item++ : null;
      }
    });
    Check.same(List.of("item-0", "item-1", "item-2"), next(taken, 3), "the items of one node");
    queue.close();
  }

  private static void idQueue(List<CuratorFramework> clients, String path) throws Exception {
    BlockingQueue<String> taken = new LinkedBlockingQueue<>();
    DistributedIdQueue<String> putting =
        QueueBuilder.<String>builder(clients.get(0), null, TEXT, path).putInBackground(false).buildIdQueue();
    putting.start();
    putting.put("keep", "first");
    putting.put("drop", "second");
    Check.same(1, putting.remove("second"), "items removed");
    DistributedIdQueue<String> taking = into(taken, clients.get(1), path).buildIdQueue();
    taking.start();
    putting.put("last", "third");
    Check.same(List.of("keep", "last"), next(taken, 2), "the items");
    putting.close();
    taking.close();
  }

  private static void priorityQueue(List<CuratorFramework> clients, String path) throws Exception {
    BlockingQueue<String> taken = new LinkedBlockingQueue<>();
    DistributedPriorityQueue<String> putting =
        QueueBuilder.<String>builder(clients.get(0), null, TEXT, path).putInBackground(false).buildPriorityQueue(0);
    putting.start();
    putting.put("late", 200);
    putting.put("urgent", 1);
    putting.put("first", 100);
    DistributedPriorityQueue<String> taking = into(taken, clients.get(1), path).buildPriorityQueue(0);
    taking.start();
    Check.same(List.of("urgent", "first", "late"), next(taken, 3), "the items");
    putting.close();
    taking.close();
  }

  private static void delayQueue(List<CuratorFramework> clients, String path) throws Exception {
    BlockingQueue<String> taken = new LinkedBlockingQueue<>();
    DistributedDelayQueue<String> putting =
        QueueBuilder.<String>builder(clients.get(0), null, TEXT, path).putInBackground(false).buildDelayQueue();
    putting.start();
    long due = System.currentTimeMillis() + 300;
    putting.put("later", due);
    putting.put("now", System.currentTimeMillis() - 1);
    // It starts when both are there, however long that took.
    DistributedDelayQueue<String> taking = into(taken, clients.get(1), path).buildDelayQueue();
    taking.start();
    Check.same(List.of("now", "later"), next(taken, 2), "the items");
    Check.must(System.currentTimeMillis() >= due, "not before its time");
    putting.close();
    taking.close();
  }

  private static void simpleQueue(List<CuratorFramework> clients, String path) throws Exception {
    SimpleDistributedQueue first = new SimpleDistributedQueue(clients.get(0), path);
    SimpleDistributedQueue second = new SimpleDistributedQueue(clients.get(1), path);
    Check.must(second.poll(50, TimeUnit.MILLISECONDS) == null, "empty");
    first.offer(Check.bytes("one"));
    first.offer(Check.bytes("two"));
    Check.same("one", Check.text(second.peek()), "the first");
    Check.same("one", Check.text(second.poll()), "the first");
    Check.same("two", Check.text(second.take()), "the second");
    Check.together(clients.subList(0, 2), client -> {
      if (client == clients.get(0)) {
        first.offer(Check.bytes("three"));
      } else {
        Check.same("three", Check.text(second.poll(Check.SECONDS, TimeUnit.SECONDS)), "one that comes");
      }
    });
  }
}
