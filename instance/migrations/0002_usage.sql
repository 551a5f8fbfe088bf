-- How much of a reader's log each author fills, so that one who floods it is stopped and
-- nobody else is.
CREATE TABLE filled (
	reader TEXT NOT NULL,
	author TEXT NOT NULL,
	bytes  INTEGER NOT NULL,
	PRIMARY KEY (reader, author)
) STRICT, WITHOUT ROWID;

INSERT INTO filled (reader, author, bytes)
	SELECT reader, author, sum(length(envelope)) FROM messages GROUP BY reader, author;

CREATE TRIGGER messages_in AFTER INSERT ON messages BEGIN
	INSERT INTO filled (reader, author, bytes) VALUES (new.reader, new.author, length(new.envelope))
		ON CONFLICT (reader, author) DO UPDATE SET bytes = bytes + excluded.bytes;
END;

CREATE TRIGGER messages_out AFTER DELETE ON messages BEGIN
	UPDATE filled SET bytes = bytes - length(old.envelope) WHERE reader = old.reader AND author = old.author;
END;

-- The broker's registry as it was last fetched, for when the broker is away.
CREATE TABLE registry (
	broker TEXT PRIMARY KEY,
	etag   TEXT NOT NULL,
	body   BLOB NOT NULL
) STRICT, WITHOUT ROWID;
