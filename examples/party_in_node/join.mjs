// Joins a party and says who is there: `node join.mjs PARTY CLIENT [HOST:PORT] [SECONDS]`.
// Leaves after SECONDS (default: at Ctrl-C). Ids are 64 bits wide: they travel as strings here,
// because a JavaScript number would lose digits.

import { randomBytes } from "node:crypto";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const [party, client, address = "127.0.0.1:50051", seconds = "0"] = process.argv.slice(2);
if (!party || !client) {
  console.error("usage: node join.mjs PARTY CLIENT [HOST:PORT] [SECONDS]");
  process.exit(2);
}

const here = dirname(fileURLToPath(import.meta.url));
const definition = loader.loadSync(join(here, "party.proto"), {
  longs: String,
  enums: String,
  keepCase: true,
  defaults: true,
});
const { ClientMessagingEndpoint } = grpc.loadPackageDefinition(definition);
const endpoint = new ClientMessagingEndpoint(address, grpc.credentials.createInsecure());

const session = (randomBytes(8).readBigUInt64BE() | 1n).toString();
const present = new Map(); // "client/session" -> client
let lastId = 0;
let stream;
let leaving = false;

function say(message) {
  lastId += 1;
  stream.write({ message_id: String(lastId), ...message });
}

function show(what) {
  const clients = [...new Set(present.values())].sort();
  console.log(`${what}; present: ${clients.join(" ") || "nobody else"}`);
}

function hear(message) {
  const { message_type: type, client_id, session_id } = message;
  if (type === "ACK") return;
  if (type === "ERROR") {
    console.log(`error ${message.status_code}`);
    return;
  }
  // Everything but ACK and ERROR is acknowledged, or it comes again.
  say({ message_type: "ACK", ack_message_ids: [message.message_id] });
  if (type === "LIST") {
    present.clear();
    for (const entry of message.participant_client_ids) {
      for (const one of entry.session_id) present.set(`${entry.client_id}/${one}`, entry.client_id);
    }
    show("welcome");
  } else if (type === "JOIN") {
    present.set(`${client_id}/${session_id}`, client_id);
    show(`${client_id} joined`);
  } else if (type === "LEAVE") {
    present.delete(`${client_id}/${session_id}`);
    show(`${client_id} left`);
  }
}

function open() {
  stream = endpoint.beginStream();
  stream.on("data", hear);
  stream.on("error", (error) => {
    if (leaving) return;
    // The session is kept for two minutes: the same ids resume it.
    console.log(`broken (${error.details}); resuming`);
    setTimeout(open, 200);
  });
  stream.on("end", () => {
    if (leaving) {
      console.log("left");
      clearInterval(pings);
      endpoint.close();
    }
  });
  say({ message_type: "JOIN", session_id: session, client_id: client, party_id: party });
}

const pings = setInterval(() => say({ message_type: "PING" }), 60_000);

function leave() {
  leaving = true;
  say({ message_type: "LEAVE" });
  stream.end();
}

process.on("SIGINT", leave);
process.on("SIGTERM", leave);
if (Number(seconds) > 0) setTimeout(leave, Number(seconds) * 1000);
open();
