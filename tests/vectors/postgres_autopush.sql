-- The tables of autopush-rs as its operators have them: names, types, references and indexes are its
-- facts (docs/guides/stores/postgres.md), the words are ours. The unique index over all sort keys included.
CREATE TABLE router (
    uaid varchar(40) PRIMARY KEY, connected_at bigint, router_type varchar(100), router_data text,
    last_connect bigint, node_id varchar(100), record_version bigint, version text,
    last_update bigint, expiry bigint, priv_channels varchar(40)[]
);
CREATE TABLE meta (
    channel_id varchar(40) NOT NULL, uaid varchar(40) NOT NULL REFERENCES router ON DELETE CASCADE,
    PRIMARY KEY (uaid, channel_id)
);
ALTER TABLE meta ADD FOREIGN KEY (uaid) REFERENCES router;
CREATE TABLE reliability (id varchar(40) PRIMARY KEY, states jsonb, last_update_timestamp bigint);
CREATE TABLE message (
    uaid varchar(40) NOT NULL REFERENCES router ON DELETE CASCADE, channel_id varchar(40),
    chid_message_id varchar(100), version text, ttl bigint, expiry bigint, topic varchar,
    "timestamp" bigint, data text, sortkey_timestamp bigint, headers text,
    reliability_id varchar(40) REFERENCES reliability, PRIMARY KEY (uaid, chid_message_id)
);
ALTER TABLE message ADD FOREIGN KEY (uaid) REFERENCES router;
CREATE UNIQUE INDEX chid_message_idx ON message (chid_message_id);
CREATE INDEX message_reliability_id_idx ON message (reliability_id);
CREATE INDEX meta_uaid_idx ON meta (uaid);
CREATE INDEX update_idx ON reliability (last_update_timestamp);
