-- Times are seconds since 1970 UTC. Nothing here opens anything: answers, hand-backs and
-- handoffs are envelopes, ids of pairs are keyed digests.

CREATE TABLE meta (
  name  TEXT PRIMARY KEY,
  value BLOB NOT NULL
) STRICT;

-- Writes that were begun, by member and op. A row comes before the provider is called.
CREATE TABLE journal (
  member TEXT NOT NULL,
  op     TEXT NOT NULL,
  state  TEXT NOT NULL, -- begun, reopens, done
  pair   INTEGER NOT NULL, -- what the grant brought: twice the pair, and one for its key
  holder TEXT NOT NULL, -- the process that runs it
  until  INTEGER NOT NULL,
  answer BLOB,          -- JSON: the envelopes that were sent
  PRIMARY KEY (member, op)
) STRICT, WITHOUT ROWID;

-- What connect.end stopped.
CREATE TABLE ends (
  member TEXT NOT NULL,
  kind   TEXT NOT NULL, -- grant, credential
  name   TEXT NOT NULL,
  at     INTEGER NOT NULL,
  pause  INTEGER NOT NULL, -- 0: for good
  until  INTEGER NOT NULL, -- the row's own end
  PRIMARY KEY (member, kind, name)
) STRICT, WITHOUT ROWID;

-- Refresh tokens that were redeemed, by keyed digest and member.
CREATE TABLE tokens (
  id     TEXT NOT NULL,
  member TEXT NOT NULL,
  line   TEXT NOT NULL,
  state  TEXT NOT NULL, -- redeeming, live, old
  tries  INTEGER NOT NULL, -- redemptions whose answer is lost
  at     INTEGER NOT NULL,
  until  INTEGER NOT NULL,
  PRIMARY KEY (id, member)
) STRICT, WITHOUT ROWID;

-- The newest pair of each line.
CREATE TABLE lines (
  line          TEXT NOT NULL,
  member        TEXT NOT NULL,
  pair          INTEGER NOT NULL,
  handback      BLOB NOT NULL, -- an envelope to the member
  bot           TEXT NOT NULL,
  handoff       BLOB NOT NULL, -- an envelope to the bot itself
  handoff_until INTEGER NOT NULL,
  until         INTEGER NOT NULL,
  PRIMARY KEY (line, member)
) STRICT, WITHOUT ROWID;

-- Hand-backs that the member has not acknowledged.
CREATE TABLE outbox (
  member     TEXT NOT NULL,
  credential TEXT NOT NULL,
  pair       INTEGER NOT NULL,
  envelope   BLOB NOT NULL,
  at         INTEGER NOT NULL,
  PRIMARY KEY (member, credential, pair)
) STRICT, WITHOUT ROWID;

-- Which process redeems a token just now.
CREATE TABLE leases (
  id     TEXT PRIMARY KEY,
  holder TEXT NOT NULL,
  until  INTEGER NOT NULL -- milliseconds
) STRICT, WITHOUT ROWID;
