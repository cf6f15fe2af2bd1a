import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.solr.client.solrj.SolrQuery;
import org.apache.solr.client.solrj.impl.CloudSolrClient;
import org.apache.solr.client.solrj.impl.CloudHttp2SolrClient;
import org.apache.solr.client.solrj.request.CollectionAdminRequest;
import org.apache.solr.cloud.ZkConfigSetService;
import org.apache.solr.common.SolrInputDocument;
import org.apache.solr.common.cloud.SolrZkClient;
import org.apache.solr.embedded.JettyConfig;
import org.apache.solr.embedded.JettySolrRunner;

/** {@code SolrNode serve HOSTS HOME PORT} is a node of SolrCloud; {@code SolrNode VERB HOSTS FROM TO} uses the cloud. */
public final class SolrNode {
  private static final String COLLECTION = "shop";

  public static void main(String[] arguments) throws Exception {
    String hosts = arguments[1];
    if (arguments[0].equals("serve")) {
      System.setProperty("zkHost", hosts);
      System.setProperty("hostPort", arguments[3]);
      JettySolrRunner node = new JettySolrRunner(
          arguments[2], new Properties(), new JettyConfig.Builder().setContext("/solr").setPort(Integer.parseInt(arguments[3])).build());
      node.start();
      System.out.println("ready " + node.getBaseUrl());
      Thread.currentThread().join();
    }
    int from = Integer.parseInt(arguments[2]);
    int to = Integer.parseInt(arguments[3]);
    if (arguments[0].equals("upload")) {
      try (SolrZkClient client = new SolrZkClient.Builder().withUrl(hosts).withTimeout(15000, TimeUnit.MILLISECONDS).build()) {
        new Upload(client).run();
      }
      System.exit(0);
    }
    try (CloudSolrClient cloud = new CloudHttp2SolrClient.Builder(List.of(hosts), Optional.empty()).build()) {
      switch (arguments[0]) {
        case "create" -> CollectionAdminRequest.createCollection(COLLECTION, "shop", 2, 1).process(cloud);
        case "index" -> {
          for (int number = from; number < to; number++) {
            SolrInputDocument document = new SolrInputDocument();
            document.addField("id", "item-" + number);
            cloud.add(COLLECTION, document);
          }
          cloud.commit(COLLECTION);
        }
        case "count" -> {
          long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
          long found = -1;
          while (found != to - from && System.nanoTime() < deadline) {
            try {
              found = cloud.query(COLLECTION, new SolrQuery("*:*")).getResults().getNumFound();
            } catch (Exception notYet) {
              System.out.println(notYet);
            }
            Thread.sleep(200);
          }
          if (found != to - from) {
            throw new AssertionError((to - from) + " documents, not " + found);
          }
        }
        case "drop" -> CollectionAdminRequest.deleteCollection(COLLECTION).process(cloud);
        default -> throw new IllegalArgumentException(arguments[0]);
      }
    }
    System.out.println("done");
    System.exit(0);
  }

  private static final class Upload extends ZkConfigSetService {
    Upload(SolrZkClient client) {
      super(client);
    }

    void run() throws Exception {
      uploadConfig("shop", configuration());
    }
  }

  private static Path configuration() throws Exception {
    Path directory = Files.createTempDirectory("solr");
    Files.writeString(directory.resolve("solrconfig.xml"),
        "<config><luceneMatchVersion>9.12</luceneMatchVersion><directoryFactory name=\"DirectoryFactory\" "
        + "class=\"solr.NRTCachingDirectoryFactory\"/><schemaFactory class=\"ClassicIndexSchemaFactory\"/>"
        + "<updateHandler class=\"solr.DirectUpdateHandler2\"><updateLog/></updateHandler>"
        + "<requestHandler name=\"/select\" class=\"solr.SearchHandler\"/></config>");
    Files.writeString(directory.resolve("schema.xml"),
        "<schema name=\"shop\" version=\"1.6\"><fieldType name=\"string\" class=\"solr.StrField\"/>"
        + "<fieldType name=\"long\" class=\"solr.LongPointField\" docValues=\"true\"/>"
        + "<field name=\"id\" type=\"string\" indexed=\"true\" stored=\"true\" required=\"true\"/>"
        + "<field name=\"_version_\" type=\"long\" indexed=\"false\" stored=\"false\"/><uniqueKey>id</uniqueKey></schema>");
    return directory;
  }
}
