// Sends one message with one of the packages beside it: `node send.mjs '{"sender": …}'`.
// Prints what it sent and what it was answered, as one line of JSON.

import { buildPushPayload } from "@block65/webcrypto-web-push";
import { buildPushHTTPRequest } from "@pushforge/builder";
import webPush from "web-push";

const { sender, subscription, text, vapid, encoding, ttl } = JSON.parse(process.argv[2]);

async function posted(endpoint, { headers, body }) {
  const answer = await fetch(endpoint, { method: "POST", headers, body });
  return {
    status: answer.status,
    location: answer.headers.get("location"),
    sent: Object.fromEntries(new Headers(headers)),
  };
}

const senders = {
  async "web-push"() {
    const options = {
      vapidDetails: vapid,
      contentEncoding: encoding,
      ...(ttl === null ? {} : { TTL: ttl }),
    };
    const sent = webPush.generateRequestDetails(subscription, text, options).headers;
    const answer = await webPush.sendNotification(subscription, text, options);
    const headers = Object.fromEntries(new Headers(sent));
    return { status: answer.statusCode, location: answer.headers.location, sent: headers };
  },
  async "@pushforge/builder"() {
    const request = await buildPushHTTPRequest({
      privateJWK: vapid.jwk,
      subscription,
      message: { payload: text, adminContact: vapid.subject, options: { ttl } },
    });
    return posted(request.endpoint, request);
  },
  async "@block65/webcrypto-web-push"() {
    const message = { data: text, options: { ttl, urgency: "high" } };
    return posted(subscription.endpoint, await buildPushPayload(message, subscription, vapid));
  },
};

console.log(JSON.stringify(await senders[sender]()));
