// What a device expects of its broker, with mqtt.js: QoS 0, 1 and 2, retained messages, Wills, persistent sessions.
//
// usage: node mqttjs_session.js HOST PORT CA_FILE VERSION     (VERSION is 3.1, 3.1.1 or 5)
//
// Prints a line for each expectation met; ends with 1 and a message at the first that was not.
'use strict'

const assert = require('assert')
const crypto = require('crypto')
const fs = require('fs')
const mqtt = require('mqtt')

const PATIENCE_MS = 15000
const PROTOCOLS = {
  3.1: { protocolId: 'MQIsdp', protocolVersion: 3 },
  '3.1.1': { protocolId: 'MQTT', protocolVersion: 4 },
  5: { protocolId: 'MQTT', protocolVersion: 5 }
}

const [host, port, caFile, version] = process.argv.slice(2)

class Device {
  constructor (options = {}) {
    const persistent = options.clean === false
    this.inbox = []
    this.waiting = []
    this.client = mqtt.connect({
      host,
      port: Number(port),
      protocol: 'mqtts',
      ca: fs.readFileSync(caFile),
      clientId: shortId(),
      clean: true,
      reconnectPeriod: 0,
      connectTimeout: PATIENCE_MS,
      ...PROTOCOLS[version],
      ...(version === '5' ? { properties: { sessionExpiryInterval: persistent ? 600 : 0 } } : {}),
      ...options
    })
    this.client.on('message', (topic, payload, packet) => {
      const taker = this.waiting.shift()
      if (taker) taker(packet)
      else this.inbox.push(packet)
    })
  }

  connect () {
    return within('CONNACK', new Promise((resolve, reject) => {
      this.client.once('connect', (connack) => {
        this.sessionPresent = connack.sessionPresent
        resolve(this)
      })
      this.client.once('error', reject)
    }))
  }

  receive () {
    if (this.inbox.length > 0) return Promise.resolve(this.inbox.shift())
    return within('a message', new Promise((resolve) => this.waiting.push(resolve)))
  }

  subscribe (topic, qos) {
    return within('SUBACK', this.client.subscribeAsync(topic, { qos }))
  }

  publish (topic, payload, options) {
    return within('the end of a publish', this.client.publishAsync(topic, payload, options))
  }

  disconnect () {
    return within('the end', this.client.endAsync())
  }

  // Resets the connection, as a device does that loses its power and comes back.
  vanish () {
    this.client.stream.destroy()
  }
}

async function qualityOfService (topic) {
  const publisher = await new Device().connect()
  const subscriber = await new Device().connect()
  for (const qos of [0, 1, 2]) {
    await subscriber.subscribe(`${topic}/${qos}`, qos)
    for (const payload of [Buffer.from('small'), crypto.randomBytes(100000), Buffer.alloc(0)]) {
      await publisher.publish(`${topic}/${qos}`, payload, { qos })
      const message = await subscriber.receive()
      assert.ok(message.payload.equals(payload), `QoS ${qos}: another payload`)
      assert.strictEqual(message.qos, qos)
    }
  }
  await publisher.disconnect()
  await subscriber.disconnect()
}

async function retained (topic) {
  const publisher = await new Device().connect()
  await publisher.publish(topic, 'kept', { qos: 1, retain: true })
  const subscriber = await new Device().connect()
  await subscriber.subscribe(topic, 1)
  const message = await subscriber.receive()
  assert.ok(message.retain, 'not marked as retained')
  assert.strictEqual(message.payload.toString(), 'kept')
  await publisher.publish(topic, '', { qos: 1, retain: true })
  await publisher.disconnect()
  await subscriber.disconnect()
}

async function will (topic) {
  const watcher = await new Device().connect()
  await watcher.subscribe(topic, 1)
  const polite = await new Device({ will: { topic, payload: 'will of the polite', qos: 1 } }).connect()
  await polite.disconnect()
  const rude = await new Device({ will: { topic, payload: 'will of the vanished', qos: 1 } }).connect()
  rude.vanish()
  const message = await watcher.receive()
  assert.strictEqual(message.payload.toString(), 'will of the vanished')
  await watcher.disconnect()
}

async function persistentSession (topic) {
  const clientId = shortId()
  const sleeper = await new Device({ clientId, clean: false }).connect()
  assert.ok(!sleeper.sessionPresent, 'a session before there was one')
  await sleeper.subscribe(topic, 1)
  await sleeper.disconnect()

  const publisher = await new Device().connect()
  for (let number = 0; number < 10; number++) await publisher.publish(topic, String(number), { qos: 1 })
  await publisher.disconnect()

  const woken = new Device({ clientId, clean: false })
  await woken.connect()
  // 3.1 has no such flag: its byte is reserved.
  assert.ok(woken.sessionPresent || version === '3.1', 'no session on coming back')
  for (let number = 0; number < 10; number++) {
    assert.strictEqual((await woken.receive()).payload.toString(), String(number))
  }
  await woken.disconnect()
  const forget = await new Device({ clientId, clean: true }).connect()
  await forget.disconnect()
}

function within (what, promise) {
  let timer
  const late = new Promise((resolve, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} did not come within ${PATIENCE_MS} ms`)), PATIENCE_MS)
  })
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

// 3.1 allows 23 characters.
function shortId () {
  return `js-${crypto.randomBytes(6).toString('hex')}`
}

async function main () {
  const topic = `js/${version}/${crypto.randomBytes(4).toString('hex')}`
  for (const scenario of [qualityOfService, retained, will, persistentSession]) {
    try {
      await scenario(`${topic}/${scenario.name}`)
    } catch (error) {
      console.error(`FAILED: ${scenario.name}: ${error.message}`)
      process.exit(1)
    }
    console.log(`${version} ${scenario.name}: ok`)
  }
}

main()
