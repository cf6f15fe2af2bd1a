import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** A user of a broker: {@code Messages HOST:PORT (create|produce|consume|administer) TOPIC FROM TO}. */
public final class Messages {
  private static final int SECONDS = 60;

  public static void main(String[] arguments) throws Exception {
    String topic = arguments[2];
    int from = Integer.parseInt(arguments[3]);
    int to = Integer.parseInt(arguments[4]);
    Map<String, Object> server = Map.of("bootstrap.servers", arguments[0], "request.timeout.ms", SECONDS * 1000);
    switch (arguments[1]) {
      case "create" -> create(server, topic);
      case "produce" -> produce(server, topic, from, to);
      case "consume" -> consume(server, topic, from, to);
      case "administer" -> administer(server, topic);
      default -> throw new IllegalArgumentException(arguments[1]);
    }
    System.out.println("done");
  }

  private static void create(Map<String, Object> server, String topic) throws Exception {
    try (Admin admin = Admin.create(server)) {
      admin.createTopics(List.of(new NewTopic(topic, 3, (short) 1))).all().get(SECONDS, TimeUnit.SECONDS);
    }
  }

  private static void produce(Map<String, Object> server, String topic, int from, int to) throws Exception {
    try (KafkaProducer<String, String> producer =
        new KafkaProducer<>(server, new StringSerializer(), new StringSerializer())) {
      for (int number = from; number < to; number++) {
        producer.send(new ProducerRecord<>(topic, "key-" + number, "message-" + number));
      }
      producer.flush();
    }
  }

  private static void consume(Map<String, Object> server, String topic, int from, int to) {
    Map<String, Object> options = new java.util.HashMap<>(server);
    options.put("group.id", "readers-" + System.nanoTime());
    options.put("auto.offset.reset", "earliest");
    TreeSet<String> wanted = new TreeSet<>();
    for (int number = from; number < to; number++) {
      wanted.add("message-" + number);
    }
    try (KafkaConsumer<String, String> consumer =
        new KafkaConsumer<>(options, new StringDeserializer(), new StringDeserializer())) {
      consumer.subscribe(List.of(topic));
      long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
      while (!wanted.isEmpty() && System.nanoTime() < deadline) {
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
          wanted.remove(record.value());
        }
      }
      consumer.commitSync();
    }
    if (!wanted.isEmpty()) {
      throw new AssertionError(wanted.size() + " messages did not come, the first is " + wanted.first());
    }
  }

  /** A setting, more partitions, a second topic and its end: each is a change that the broker learns from ZooKeeper. */
  private static void administer(Map<String, Object> server, String topic) throws Exception {
    try (Admin admin = Admin.create(server)) {
      ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
      Collection<AlterConfigOp> change =
          List.of(new AlterConfigOp(new ConfigEntry("retention.ms", "7200000"), AlterConfigOp.OpType.SET));
      admin.incrementalAlterConfigs(Map.of(resource, change)).all().get(SECONDS, TimeUnit.SECONDS);
      admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all().get(SECONDS, TimeUnit.SECONDS);
      admin.createTopics(List.of(new NewTopic(topic + "-gone", 1, (short) 1))).all().get(SECONDS, TimeUnit.SECONDS);
      admin.deleteTopics(List.of(topic + "-gone")).all().get(SECONDS, TimeUnit.SECONDS);
      eventually(() -> "7200000".equals(
          admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value()), "the setting");
      eventually(() -> admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size() == 5,
          "more partitions");
      eventually(() -> !admin.listTopics().names().get().contains(topic + "-gone"), "the topic's end");
    }
  }

  interface Condition {
    boolean holds() throws Exception;
  }

  private static void eventually(Condition condition, String what) throws Exception {
    long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
    while (!condition.holds()) {
      if (System.nanoTime() > deadline) {
        throw new AssertionError("expected: " + what);
      }
      Thread.sleep(50);
    }
  }
}
