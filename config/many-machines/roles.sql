-- Run once on the primary as its administrator; then set both passwords with psql's \password.
-- Under Patroni leave out the first statement: it makes this role itself, with the password that it is given.
CREATE ROLE replicator LOGIN REPLICATION;
CREATE ROLE sessions LOGIN CONNECTION LIMIT 80;
CREATE DATABASE miniclaw OWNER sessions ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0;
REVOKE ALL ON DATABASE miniclaw FROM PUBLIC;
-- So that /health can say how many standbys are connected; without it everything else works.
GRANT pg_read_all_stats TO sessions;
