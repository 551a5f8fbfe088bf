-- Keys are named by their ids; times are seconds since 1970 UTC. What is sealed stands in
-- the columns named envelope, as it is sent, and nothing here opens it.

CREATE TABLE meta (
	name  TEXT PRIMARY KEY,
	value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE members (
	id        TEXT PRIMARY KEY,                -- the key's id
	key       BLOB NOT NULL,                   -- the 65-byte point
	kind      TEXT NOT NULL CHECK (kind IN ('member', 'bot')),
	name      TEXT NOT NULL DEFAULT '',
	grp       TEXT NOT NULL DEFAULT '',        -- a bot's group
	day       BLOB,                            -- a bot's key of the day
	day_until INTEGER NOT NULL DEFAULT 0,
	joined_at INTEGER NOT NULL,
	seq       INTEGER NOT NULL DEFAULT 0       -- of the last message that came for this key
) STRICT, WITHOUT ROWID;

CREATE TABLE sessions (
	hash   BLOB PRIMARY KEY,                   -- SHA-256 of the token, which is nowhere
	member TEXT NOT NULL REFERENCES members (id),
	made   INTEGER NOT NULL,
	until  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_of ON sessions (member, made);

CREATE TABLE threads (
	id      TEXT PRIMARY KEY,
	creator TEXT NOT NULL REFERENCES members (id),
	made_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX threads_of ON threads (creator);

CREATE TABLE thread_members (
	thread TEXT NOT NULL REFERENCES threads (id),
	member TEXT NOT NULL REFERENCES members (id),
	here   INTEGER NOT NULL CHECK (here IN (0, 1)),  -- 0: was here, and has left
	PRIMARY KEY (thread, member)
) STRICT, WITHOUT ROWID;
CREATE INDEX thread_members_of ON thread_members (member, thread);

-- Each reader has a log of her own, with a count of her own: nobody learns from it how much
-- others are told.
CREATE TABLE messages (
	reader   TEXT NOT NULL REFERENCES members (id),
	seq      INTEGER NOT NULL,
	author   TEXT NOT NULL REFERENCES members (id),
	thread   TEXT NOT NULL,
	at       INTEGER NOT NULL,
	until    INTEGER,                          -- deleted then; NULL: kept
	envelope BLOB NOT NULL,
	PRIMARY KEY (reader, seq)
) STRICT;
CREATE INDEX messages_until ON messages (until) WHERE until IS NOT NULL;
CREATE INDEX messages_thread ON messages (reader, thread, seq);

-- What was posted, so that a retry after a lost answer is no second message. It outlives
-- the message itself, and holds none of it.
CREATE TABLE posted (
	author TEXT NOT NULL,
	id     TEXT NOT NULL,                      -- the author's own choice
	digest BLOB NOT NULL,
	seq    INTEGER NOT NULL,
	at     INTEGER NOT NULL,
	until  INTEGER,
	PRIMARY KEY (author, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX posted_at ON posted (at);

CREATE TABLE blobs (
	owner      TEXT NOT NULL REFERENCES members (id),
	id         TEXT NOT NULL,
	generation INTEGER NOT NULL,
	at         INTEGER NOT NULL,
	envelope   BLOB,                           -- NULL: deleted, and no older one may return
	PRIMARY KEY (owner, id)
) STRICT;
