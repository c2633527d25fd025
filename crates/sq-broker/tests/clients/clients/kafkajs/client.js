// The kafkajs adapter of the client suite; ../../README.md has the protocol that it speaks.
// kafkajs consumes through groups alone, so here it only produces.
'use strict'

const readline = require('node:readline')
const { createRequire } = require('node:module')

// The packages are installed outside the source tree.
const load = createRequire(process.env.SQ_NODE_MODULES + '/')
const { Kafka, CompressionTypes, CompressionCodecs, logLevel } = load('kafkajs')
const snappy = load('snappyjs')
const lz4 = load('lz4-napi')
const zstd = load('@bokuweb/zstd-wasm')

const BATCH_RECORDS = 50
const BATCH_BYTES = 16384

CompressionCodecs[CompressionTypes.Snappy] = () => ({
  compress: async encoder => snappy.compress(encoder.buffer),
  decompress: async buffer => snappy.uncompress(buffer),
})
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async encoder => lz4.compressFrame(encoder.buffer),
  decompress: async buffer => lz4.decompressFrame(buffer),
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => Buffer.from(zstd.compress(encoder.buffer)),
  decompress: async buffer => Buffer.from(zstd.decompress(buffer)),
})

const TYPES = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}

const connect = bootstrap =>
  new Kafka({ clientId: 'sq-suite', brokers: [bootstrap], logLevel: logLevel.WARN })

const bytes = text => (text === '-' ? null : Buffer.from(text, 'hex'))

function parse(line) {
  const [timestamp, key, value, list] = line.split('\t')
  const headers = {}
  for (const header of list.split(',').filter(Boolean)) {
    const [name, content] = header.split('=')
    const field = Buffer.from(name, 'hex').toString()
    // A name that comes twice is an array of its values.
    headers[field] = field in headers ? [].concat(headers[field], bytes(content)) : bytes(content)
  }
  return { partition: 0, timestamp, key: bytes(key), value: bytes(value), headers }
}

async function create(bootstrap, topic, partitions, ...settings) {
  const admin = connect(bootstrap).admin()
  await admin.connect()
  const configEntries = settings.map(setting => {
    const at = setting.indexOf('=')
    return { name: setting.slice(0, at), value: setting.slice(at + 1) }
  })
  await admin.createTopics({
    topics: [{ topic, numPartitions: Number(partitions), replicationFactor: 1, configEntries }],
  })
  await admin.disconnect()
}

async function remove(bootstrap, topic) {
  const admin = connect(bootstrap).admin()
  await admin.connect()
  await admin.deleteTopics({ topics: [topic] })
  await admin.disconnect()
}

async function purge(bootstrap, topic, offset) {
  const admin = connect(bootstrap).admin()
  await admin.connect()
  // It looks for the leader in metadata that it has already, and loads none itself.
  await admin.fetchTopicMetadata({ topics: [topic] })
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset }] })
  await admin.disconnect()
}

async function produce(bootstrap, topic, codec, idempotent) {
  await zstd.init()
  const producer = connect(bootstrap).producer({
    idempotent: idempotent === '1',
    maxInFlightRequests: 1,
    allowAutoTopicCreation: false,
  })
  await producer.connect()
  let index = 0
  let messages = []
  let size = 0
  const send = async () => {
    const [answer] = await producer.send({
      topic,
      messages,
      acks: idempotent === '1' ? -1 : 1,
      compression: TYPES[codec],
    })
    // kafkajs tells the first offset of what it sent.
    messages.forEach((_, at) => {
      process.stdout.write(`A\t${index + at}\t${BigInt(answer.baseOffset) + BigInt(at)}\n`)
    })
    index += messages.length
    messages = []
    size = 0
  }
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const message = parse(line)
    messages.push(message)
    size += message.value === null ? 0 : message.value.length
    if (messages.length === BATCH_RECORDS || size >= BATCH_BYTES) await send()
  }
  if (messages.length > 0) await send()
  await producer.disconnect()
}

const [command, ...words] = process.argv.slice(2)
const commands = { create, delete: remove, purge, produce }
commands[command](...words).catch(error => {
  console.error(error)
  // Of itself the process would not end before its connections do.
  process.exit(1)
})
