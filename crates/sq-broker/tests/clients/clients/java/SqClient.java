import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The Java adapter of the client suite; ../../README.md has the protocol that it speaks. */
public final class SqClient {
    private static final Duration PATIENCE = Duration.ofSeconds(60);
    private static final int WINDOW = 1000;
    // As in suite/payload.py.
    private static final int BURST = 100;
    private static final long RECORDS_PER_SECOND = 1500;
    private static final HexFormat HEX = HexFormat.of();
    private static final PrintStream OUT =
            new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.US_ASCII);

    private SqClient() {}

    public static void main(String[] words) throws Exception {
        List<String> rest = Arrays.asList(words).subList(1, words.length);
        switch (words[0]) {
            case "create" -> create(rest.get(0), rest.get(1), rest.get(2), rest.subList(3, rest.size()));
            case "delete" -> delete(rest.get(0), rest.get(1));
            case "purge" -> purge(rest.get(0), rest.get(1), Long.parseLong(rest.get(2)));
            case "produce" -> produce(rest.get(0), rest.get(1), rest.get(2), rest.get(3).equals("1"));
            case "consume" -> consume(rest.get(0), rest.get(1), rest.get(2), Integer.parseInt(rest.get(3)));
            case "load" -> {
                int partition = Integer.parseInt(rest.get(2));
                load(rest.get(0), rest.get(1), partition, rest.get(3), rest.get(4).equals("1"));
            }
            default -> throw new IllegalArgumentException(words[0]);
        }
        OUT.flush();
    }

    private static Properties base(String bootstrap) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        return properties;
    }

    private static void create(String bootstrap, String topic, String partitions, List<String> settings)
            throws Exception {
        Map<String, String> configs = new HashMap<>();
        for (String setting : settings) {
            String[] pair = setting.split("=", 2);
            configs.put(pair[0], pair[1]);
        }
        try (Admin admin = Admin.create(base(bootstrap))) {
            NewTopic created = new NewTopic(topic, Integer.parseInt(partitions), (short) 1).configs(configs);
            admin.createTopics(List.of(created)).all().get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
        }
    }

    private static void delete(String bootstrap, String topic) throws Exception {
        try (Admin admin = Admin.create(base(bootstrap))) {
            admin.deleteTopics(List.of(topic)).all().get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
        }
    }

    private static void purge(String bootstrap, String topic, long offset) throws Exception {
        TopicPartition partition = new TopicPartition(topic, 0);
        try (Admin admin = Admin.create(base(bootstrap))) {
            long low = admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(offset)))
                    .lowWatermarks()
                    .get(partition)
                    .get(PATIENCE.toSeconds(), TimeUnit.SECONDS)
                    .lowWatermark();
            OUT.println("W\t" + low);
        }
    }

    private static KafkaProducer<byte[], byte[]> producer(Properties properties, boolean idempotent) {
        properties.put("enable.idempotence", Boolean.toString(idempotent));
        properties.put("acks", idempotent ? "all" : "1");
        properties.put("batch.size", "16384");
        properties.put("linger.ms", "5");
        properties.put("request.timeout.ms", "30000");
        properties.put("delivery.timeout.ms", "60000");
        return new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static void produce(String bootstrap, String topic, String codec, boolean idempotent) throws IOException {
        Properties properties = base(bootstrap);
        properties.put("compression.type", codec);
        AtomicReference<Exception> failure = new AtomicReference<>();
        try (KafkaProducer<byte[], byte[]> producer = producer(properties, idempotent)) {
            BufferedReader lines = input();
            int index = 0;
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                int record = index++;
                producer.send(parse(topic, line), (metadata, error) -> {
                    if (error == null) {
                        OUT.println("A\t" + record + "\t" + metadata.offset());
                    } else {
                        failure.set(error);
                    }
                });
            }
            producer.flush();
        }
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
    }

    private static void consume(String bootstrap, String topic, String from, int count) {
        Properties properties = base(bootstrap);
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        properties.put("max.partition.fetch.bytes", "32768");
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(partition));
            if (from.equals("end")) {
                consumer.seekToEnd(List.of(partition));
                consumer.position(partition, PATIENCE);
                // One fetch that comes back empty: the next ones wait at the broker.
                if (!consumer.poll(Duration.ofMillis(1)).isEmpty()) {
                    throw new IllegalStateException("a record behind the end");
                }
                OUT.println("READY");
                OUT.flush();
            } else if (from.equals("lost")) {
                consumer.seek(partition, 0);
            } else {
                consumer.seekToBeginning(List.of(partition));
            }
            int seen = 0;
            while (seen < count) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(PATIENCE);
                if (records.isEmpty()) {
                    throw new IllegalStateException("no record for " + PATIENCE + " after " + seen);
                }
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    OUT.println(line(record));
                }
                seen += records.count();
            }
        }
    }

    /** Produces until its standard input ends, over every loss of the broker. */
    private static void load(String bootstrap, String topic, int partition, String name, boolean idempotent)
            throws Exception {
        Properties properties = base(bootstrap);
        if (!idempotent) {
            // A record that it sent twice could rightly be there twice.
            properties.put("retries", "0");
        }
        Thread stop = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        });
        stop.setDaemon(true);
        stop.start();
        Semaphore window = new Semaphore(WINDOW);
        long began = System.nanoTime();
        try (KafkaProducer<byte[], byte[]> producer = producer(properties, idempotent)) {
            for (int next = 0; stop.isAlive(); next++) {
                int sequence = next;
                long due = began + sequence / BURST * BURST * 1_000_000_000L / RECORDS_PER_SECOND;
                TimeUnit.NANOSECONDS.sleep(due - System.nanoTime());
                if (!window.tryAcquire(PATIENCE.toSeconds(), TimeUnit.SECONDS)) {
                    throw new TimeoutException("nothing acknowledged for " + PATIENCE);
                }
                ProducerRecord<byte[], byte[]> record =
                        new ProducerRecord<>(topic, partition, null, value(name, sequence));
                producer.send(record, (metadata, error) -> {
                    window.release();
                    if (error == null) {
                        OUT.println("A\t" + sequence + "\t" + metadata.offset());
                    } else {
                        OUT.println("E\t" + sequence + "\t" + error.getClass().getSimpleName());
                    }
                    OUT.flush();
                });
            }
            producer.flush();
        }
    }

    /** The same bytes as in suite/payload.py. */
    private static byte[] value(String name, int sequence) {
        byte[] head = (name + ":" + sequence + ":").getBytes(StandardCharsets.US_ASCII);
        int filling = (int) (sequence * 7919L % 1500);
        byte[] value = Arrays.copyOf(head, head.length + filling);
        for (int at = 0; at < filling; at++) {
            value[head.length + at] = (byte) (33 + (sequence % 89 + at) % 94);
        }
        return value;
    }

    private static BufferedReader input() {
        return new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
    }

    private static ProducerRecord<byte[], byte[]> parse(String topic, String line) {
        String[] fields = line.split("\t", -1);
        List<Header> headers = new ArrayList<>();
        for (String header : fields[3].split(",")) {
            if (!header.isEmpty()) {
                String[] pair = header.split("=", -1);
                String name = new String(HEX.parseHex(pair[0]), StandardCharsets.UTF_8);
                headers.add(new RecordHeader(name, bytes(pair[1])));
            }
        }
        return new ProducerRecord<>(topic, 0, Long.parseLong(fields[0]), bytes(fields[1]), bytes(fields[2]), headers);
    }

    private static String line(ConsumerRecord<byte[], byte[]> record) {
        List<String> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            String name = HEX.formatHex(header.key().getBytes(StandardCharsets.UTF_8));
            headers.add(name + "=" + text(header.value()));
        }
        return String.join("\t", "R", Long.toString(record.offset()), Long.toString(record.timestamp()),
                text(record.key()), text(record.value()), String.join(",", headers));
    }

    private static byte[] bytes(String text) {
        return text.equals("-") ? null : HEX.parseHex(text);
    }

    private static String text(byte[] bytes) {
        return bytes == null ? "-" : HEX.formatHex(bytes);
    }
}
