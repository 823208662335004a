-- A store of schema version 5: one attempt that ended, one that runs, one rollout that waits; attempts have hashes of keys that name nothing.
PRAGMA user_version = 5;
BEGIN TRANSACTION;
CREATE TABLE attempts (
	rollout_id TEXT NOT NULL, 
	number INTEGER NOT NULL, 
	token BIGINT NOT NULL, 
	state TEXT NOT NULL, 
	failure TEXT, 
	error TEXT, 
	worker_id TEXT NOT NULL, 
	resources_id TEXT, 
	key_hash TEXT NOT NULL, 
	request_id TEXT, 
	started_at BIGINT NOT NULL, 
	ended_at BIGINT, 
	PRIMARY KEY (rollout_id, number), 
	UNIQUE (key_hash)
);
INSERT INTO "attempts" VALUES('ro-fd08c50710d79c1b95d7',1,1,'succeeded',NULL,NULL,'w','rs-a438dd92617abf58','ea5ae93b250dffee89e4ce369020e72c60cb5e0f9cd4fdc039e9b0855c8ce59c','6300c7347601262a01927681d4ab462f',1000000000000,1000000000000);
INSERT INTO "attempts" VALUES('ro-8fede757dd424973ce2a',1,1,'running',NULL,NULL,'w','rs-a438dd92617abf58','78cd7d6710d9ce70c1f31abd230b7f5ea2d6ca0e772976778fbf4290842c657c','6300c7347601262a01927681d4ab462f',1000000000000,NULL);
CREATE TABLE audit_counts (
	run_id TEXT NOT NULL, 
	iteration BIGINT NOT NULL, 
	mode TEXT NOT NULL, 
	what TEXT NOT NULL, 
	n BIGINT NOT NULL, 
	PRIMARY KEY (run_id, iteration, mode, what)
);
CREATE TABLE blob_uses (
	sha256 BLOB NOT NULL, 
	owner TEXT NOT NULL, 
	PRIMARY KEY (sha256, owner), 
	FOREIGN KEY(sha256) REFERENCES blobs (sha256)
);
CREATE TABLE blobs (
	sha256 BLOB NOT NULL, 
	data BLOB NOT NULL, 
	PRIMARY KEY (sha256)
);
CREATE TABLE counters (
	run_id TEXT NOT NULL, 
	iteration BIGINT NOT NULL, 
	mode TEXT NOT NULL, 
	queue TEXT NOT NULL, 
	state TEXT NOT NULL, 
	failure TEXT NOT NULL, 
	n BIGINT NOT NULL, 
	PRIMARY KEY (run_id, iteration, mode, queue, state, failure)
);
INSERT INTO "counters" VALUES('run-1',0,'train','default','queued','',1);
INSERT INTO "counters" VALUES('run-1',0,'train','default','running','',1);
INSERT INTO "counters" VALUES('run-1',0,'train','default','succeeded','',1);
CREATE TABLE generations (
	seq INTEGER NOT NULL, 
	id TEXT NOT NULL, 
	call_id TEXT NOT NULL, 
	rollout_id TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	choice INTEGER NOT NULL, 
	model TEXT NOT NULL, 
	deployment TEXT, 
	checkpoint TEXT, 
	status TEXT NOT NULL, 
	error TEXT, 
	prompt_token_ids BLOB, 
	response_token_ids BLOB, 
	logprobs BLOB, 
	sampling BLOB NOT NULL, 
	finish_reason TEXT, 
	prompt_tokens BIGINT, 
	completion_tokens BIGINT, 
	request BLOB NOT NULL, 
	response BLOB, 
	started_at BIGINT NOT NULL, 
	latency DOUBLE NOT NULL, 
	late BOOLEAN NOT NULL, 
	findings TEXT, 
	continuity TEXT, 
	follows TEXT, 
	differs_at BIGINT, 
	exact BOOLEAN, 
	audit BLOB, 
	PRIMARY KEY (seq), 
	UNIQUE (id)
);
CREATE TABLE leases (
	rollout_id TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	token BIGINT NOT NULL, 
	worker_id TEXT NOT NULL, 
	queue TEXT NOT NULL, 
	duration BIGINT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	deadline_at BIGINT NOT NULL, 
	PRIMARY KEY (rollout_id)
);
INSERT INTO "leases" VALUES('ro-8fede757dd424973ce2a',1,1,'w','default',60000000,1000060000000,1001800000000);
CREATE TABLE meta (
	"key" TEXT NOT NULL, 
	value BLOB NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "meta" VALUES('secret',X'5EDDD0138FB3B93665F5A9D629FA76F675C0E2F53888924CCA640FCB42E9FF72');
INSERT INTO "meta" VALUES('views',X'65633830386665616333373930343433313966333863656362643330336264313463623063393962363065353233626264653535356636393636666262386232');
CREATE TABLE queues (
	name TEXT NOT NULL, 
	paused BOOLEAN NOT NULL, 
	max_running INTEGER, 
	changed_at BIGINT NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE rejections (
	source TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	n BIGINT NOT NULL, 
	example TEXT NOT NULL, 
	last_at BIGINT NOT NULL, 
	PRIMARY KEY (source, reason)
);
CREATE TABLE resources (
	version INTEGER NOT NULL, 
	id TEXT NOT NULL, 
	body BLOB NOT NULL, 
	alive_until BIGINT, 
	retired_at BIGINT, 
	created_at BIGINT NOT NULL, 
	idempotency_key TEXT, 
	request_hash TEXT NOT NULL, 
	PRIMARY KEY (version), 
	UNIQUE (id), 
	UNIQUE (idempotency_key)
);
INSERT INTO "resources" VALUES(1,'rs-a438dd92617abf58',X'7B226C6C6D223A7B226B696E64223A226C6C6D222C22656E64706F696E74223A22687474703A2F2F3132372E302E302E312F7631222C226D6F64656C223A226D222C226170695F6B6579223A6E756C6C2C2273616D706C696E675F706172616D6574657273223A7B7D2C2270726F78696564223A747275652C226465706C6F796D656E74223A6E756C6C2C22636865636B706F696E74223A6E756C6C7D7D',NULL,NULL,1000000000000,'6921d4fac89bcf5c626cb3c5181ee160','14053895688255100a6cf08a4328cf02c228d3d8c1d8600532c00651ed53f232');
CREATE TABLE rewards (
	seq INTEGER NOT NULL, 
	rollout_id TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	source TEXT NOT NULL, 
	position TEXT NOT NULL, 
	value DOUBLE NOT NULL, 
	created_at BIGINT NOT NULL, 
	PRIMARY KEY (seq), 
	UNIQUE (rollout_id, attempt, name, source, position)
);
INSERT INTO "rewards" VALUES(1,'ro-fd08c50710d79c1b95d7',1,'reward','agent','end',1.0,1000000000000);
CREATE TABLE rollouts (
	seq INTEGER NOT NULL, 
	id TEXT NOT NULL, 
	state TEXT NOT NULL, 
	mode TEXT NOT NULL, 
	queue TEXT NOT NULL, 
	priority INTEGER NOT NULL, 
	run_id TEXT, 
	iteration BIGINT, 
	resources_id TEXT, 
	input BLOB NOT NULL, 
	config BLOB NOT NULL, 
	metadata BLOB NOT NULL, 
	group_key TEXT, 
	environment_class_id TEXT, 
	episode_spec_id TEXT, 
	episode_id TEXT, 
	seed BIGINT, 
	attempt INTEGER NOT NULL, 
	failures INTEGER NOT NULL, 
	lost INTEGER NOT NULL, 
	released INTEGER NOT NULL, 
	lease_token BIGINT NOT NULL, 
	available_at BIGINT, 
	failure TEXT, 
	error TEXT, 
	created_at BIGINT NOT NULL, 
	finished_at BIGINT, 
	idempotency_key TEXT, 
	request_hash TEXT, 
	requeue_id TEXT, 
	revision BIGINT NOT NULL, 
	PRIMARY KEY (seq), 
	UNIQUE (id), 
	UNIQUE (idempotency_key)
);
INSERT INTO "rollouts" VALUES(1,'ro-fd08c50710d79c1b95d7','succeeded','train','default',0,'run-1',0,NULL,X'7B226E223A307D',X'7B22617474656D70745F74696D656F7574223A313830302E302C226D61785F617474656D707473223A332C226D61785F6C6F7374223A332C2272657472795F6F6E223A5B22696E667261737472756374757265222C22746F6F6C222C226C6F7374225D2C2272657472795F64656C6179223A312E302C2272657472795F64656C617973223A7B7D7D',X'7B7D','g',NULL,NULL,NULL,NULL,1,0,0,0,2,NULL,NULL,NULL,1000000000000,1000000000000,'key-0','94cddd81cabeb3f68a42693799349ec654dd1b09a2a79cd092879326dcef6a08',NULL,1796098283408145);
INSERT INTO "rollouts" VALUES(2,'ro-8fede757dd424973ce2a','running','train','default',0,'run-1',0,NULL,X'7B226E223A317D',X'7B22617474656D70745F74696D656F7574223A313830302E302C226D61785F617474656D707473223A332C226D61785F6C6F7374223A332C2272657472795F6F6E223A5B22696E667261737472756374757265222C22746F6F6C222C226C6F7374225D2C2272657472795F64656C6179223A312E302C2272657472795F64656C617973223A7B7D7D',X'7B7D','g',NULL,NULL,NULL,NULL,1,0,0,0,1,NULL,NULL,NULL,1000000000000,NULL,'key-1','742116512a8e7e8d2215973166182c4b6513fc8598f4e10af6298cf80824c2e9',NULL,1796098283380147);
INSERT INTO "rollouts" VALUES(3,'ro-5fa16c1b4c664c0f5b36','queued','train','default',0,'run-1',0,NULL,X'7B226E223A327D',X'7B22617474656D70745F74696D656F7574223A313830302E302C226D61785F617474656D707473223A332C226D61785F6C6F7374223A332C2272657472795F6F6E223A5B22696E667261737472756374757265222C22746F6F6C222C226C6F7374225D2C2272657472795F64656C6179223A312E302C2272657472795F64656C617973223A7B7D7D',X'7B7D','g',NULL,NULL,NULL,NULL,0,0,0,0,0,NULL,NULL,NULL,1000000000000,NULL,'key-2','c3d9a528181b67514602de56f99e46ec45cacccc73cb99a4bd935306036c497a',NULL,1796098283361318);
CREATE TABLE runs (
	seq INTEGER NOT NULL, 
	id TEXT NOT NULL, 
	state TEXT NOT NULL, 
	epoch BIGINT NOT NULL, 
	config BLOB NOT NULL, 
	summary BLOB, 
	request_id TEXT, 
	alive_until BIGINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	finished_at BIGINT, 
	PRIMARY KEY (seq), 
	UNIQUE (id)
);
INSERT INTO "runs" VALUES(1,'run-1','running',1,X'7B2261223A317D',NULL,'a1220b8ace0aafa33862e453ec300b70',1000060000000,1000000000000,NULL);
CREATE TABLE spans (
	seq INTEGER NOT NULL, 
	rollout_id TEXT, 
	attempt INTEGER, 
	trace_id TEXT NOT NULL, 
	span_id TEXT NOT NULL, 
	parent_id TEXT, 
	name TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	start_ns BIGINT NOT NULL, 
	end_ns BIGINT NOT NULL, 
	status TEXT NOT NULL, 
	status_message TEXT, 
	attributes BLOB NOT NULL, 
	events BLOB NOT NULL, 
	links BLOB, 
	resource BLOB, 
	scope TEXT, 
	late BOOLEAN NOT NULL, 
	received_at BIGINT NOT NULL, 
	normalizer INTEGER, 
	operation TEXT, 
	model TEXT, 
	provider TEXT, 
	input_tokens BIGINT, 
	output_tokens BIGINT, 
	cached_tokens BIGINT, 
	reasoning_tokens BIGINT, 
	finish_reason TEXT, 
	tool_name TEXT, 
	agent_name TEXT, 
	conversation_id TEXT, 
	error_type TEXT, 
	PRIMARY KEY (seq), 
	UNIQUE (trace_id, span_id)
);
CREATE TABLE tokens (
	id TEXT NOT NULL, 
	name TEXT NOT NULL, 
	hash TEXT NOT NULL, 
	scopes TEXT NOT NULL, 
	created_at BIGINT NOT NULL, 
	revoked_at BIGINT, 
	PRIMARY KEY (id)
);
CREATE TABLE workers (
	id TEXT NOT NULL, 
	name TEXT NOT NULL, 
	pid BIGINT, 
	host TEXT, 
	capacity INTEGER NOT NULL, 
	started_at BIGINT NOT NULL, 
	last_seen_at BIGINT NOT NULL, 
	stopped_at BIGINT, 
	PRIMARY KEY (id)
);
INSERT INTO "workers" VALUES('w','w',NULL,NULL,4,1000000000000,1000000000000,NULL);
CREATE INDEX rollouts_iteration ON rollouts (iteration, seq) WHERE iteration IS NOT NULL;
CREATE INDEX rollouts_state ON rollouts (state, seq);
CREATE INDEX rollouts_queue ON rollouts (queue, seq);
CREATE INDEX rollouts_created ON rollouts (created_at, seq);
CREATE INDEX rollouts_resources ON rollouts (resources_id) WHERE resources_id IS NOT NULL;
CREATE INDEX rollouts_failure ON rollouts (failure, seq) WHERE failure IS NOT NULL;
CREATE INDEX rollouts_finished ON rollouts (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX rollouts_run ON rollouts (run_id, seq);
CREATE INDEX rollouts_due ON rollouts (available_at) WHERE available_at IS NOT NULL;
CREATE INDEX rollouts_mode ON rollouts (mode, seq);
CREATE INDEX rollouts_revision ON rollouts (revision, seq);
CREATE INDEX rollouts_group ON rollouts (group_key, seq) WHERE group_key IS NOT NULL;
CREATE INDEX rollouts_ready ON rollouts (queue, priority, seq, resources_id) WHERE state = 'queued';
CREATE INDEX ix_leases_queue ON leases (queue);
CREATE INDEX ix_attempts_resources_id ON attempts (resources_id);
CREATE INDEX ix_attempts_request_id ON attempts (request_id);
CREATE INDEX spans_model ON spans (model, received_at, seq) WHERE model IS NOT NULL;
CREATE INDEX spans_unattached ON spans (received_at, seq) WHERE rollout_id IS NULL;
CREATE INDEX spans_attempt ON spans (rollout_id, attempt, start_ns);
CREATE INDEX spans_trace ON spans (trace_id, seq);
CREATE INDEX spans_received ON spans (received_at, seq);
CREATE INDEX spans_status ON spans (status, received_at, seq);
CREATE INDEX spans_operation ON spans (operation, received_at, seq) WHERE operation IS NOT NULL;
CREATE INDEX spans_name ON spans (name, received_at, seq);
CREATE INDEX generations_attempt ON generations (rollout_id, attempt, started_at);
CREATE INDEX ix_blob_uses_owner ON blob_uses (owner);
CREATE VIEW v_rollouts AS SELECT id, state, mode, queue, priority, run_id, iteration, group_key, resources_id, attempt, failures, lost, released, failure, error, environment_class_id, episode_spec_id, episode_id, seed, revision, available_at, strftime('%Y-%m-%d %H:%M:%f', available_at / 1000000.0, 'unixepoch') AS available_utc, created_at, strftime('%Y-%m-%d %H:%M:%f', created_at / 1000000.0, 'unixepoch') AS created_utc, finished_at, strftime('%Y-%m-%d %H:%M:%f', finished_at / 1000000.0, 'unixepoch') AS finished_utc, (finished_at - created_at) / 1000000.0 AS seconds, CASE WHEN hex(substr(input, 1, 1)) >= '20' THEN CAST(input AS TEXT) END AS input, CASE WHEN hex(substr(config, 1, 1)) >= '20' THEN CAST(config AS TEXT) END AS config, CASE WHEN hex(substr(metadata, 1, 1)) >= '20' THEN CAST(metadata AS TEXT) END AS metadata FROM rollouts;
CREATE VIEW v_attempts AS SELECT rollout_id, number, state, failure, error, worker_id, resources_id, started_at, strftime('%Y-%m-%d %H:%M:%f', started_at / 1000000.0, 'unixepoch') AS started_utc, ended_at, strftime('%Y-%m-%d %H:%M:%f', ended_at / 1000000.0, 'unixepoch') AS ended_utc, (ended_at - started_at) / 1000000.0 AS seconds FROM attempts;
CREATE VIEW v_leases AS SELECT rollout_id, attempt, worker_id, queue, expires_at, strftime('%Y-%m-%d %H:%M:%f', expires_at / 1000000.0, 'unixepoch') AS expires_utc, deadline_at, strftime('%Y-%m-%d %H:%M:%f', deadline_at / 1000000.0, 'unixepoch') AS deadline_utc FROM leases;
CREATE VIEW v_counts AS SELECT mode, queue, state, n, nullif(run_id, '') AS run_id, nullif(iteration, -1) AS iteration, nullif(failure, '') AS failure FROM counters;
CREATE VIEW v_queues AS SELECT name, paused, max_running, changed_at, strftime('%Y-%m-%d %H:%M:%f', changed_at / 1000000.0, 'unixepoch') AS changed_utc FROM queues;
CREATE VIEW v_spans AS SELECT trace_id, span_id, parent_id, rollout_id, attempt, name, kind, status, status_message, operation, model, provider, input_tokens, output_tokens, cached_tokens, reasoning_tokens, finish_reason, tool_name, agent_name, conversation_id, error_type, normalizer, scope, late, start_ns, end_ns, received_at, strftime('%Y-%m-%d %H:%M:%f', received_at / 1000000.0, 'unixepoch') AS received_utc, (end_ns - start_ns) / 1000000.0 AS milliseconds, CASE WHEN hex(substr(attributes, 1, 1)) >= '20' THEN CAST(attributes AS TEXT) END AS attributes, CASE WHEN hex(substr(events, 1, 1)) >= '20' THEN CAST(events AS TEXT) END AS events, CASE WHEN hex(substr(links, 1, 1)) >= '20' THEN CAST(links AS TEXT) END AS links, CASE WHEN hex(substr(resource, 1, 1)) >= '20' THEN CAST(resource AS TEXT) END AS resource FROM spans;
CREATE VIEW v_generations AS SELECT id, call_id, rollout_id, attempt, choice, model, deployment, checkpoint, status, error, finish_reason, prompt_tokens, completion_tokens, latency, late, findings, continuity, follows, differs_at, exact, started_at, strftime('%Y-%m-%d %H:%M:%f', started_at / 1000000.0, 'unixepoch') AS started_utc, CASE WHEN hex(substr(sampling, 1, 1)) >= '20' THEN CAST(sampling AS TEXT) END AS sampling, CASE WHEN hex(substr(request, 1, 1)) >= '20' THEN CAST(request AS TEXT) END AS request, CASE WHEN hex(substr(response, 1, 1)) >= '20' THEN CAST(response AS TEXT) END AS response, CASE WHEN hex(substr(audit, 1, 1)) >= '20' THEN CAST(audit AS TEXT) END AS audit FROM generations;
CREATE VIEW v_audit_counts AS SELECT mode, what, n, nullif(run_id, '') AS run_id, nullif(iteration, -1) AS iteration FROM audit_counts;
CREATE VIEW v_rewards AS SELECT rollout_id, attempt, name, source, position, value, created_at, strftime('%Y-%m-%d %H:%M:%f', created_at / 1000000.0, 'unixepoch') AS created_utc FROM rewards;
CREATE VIEW v_resources AS SELECT id, version, alive_until, strftime('%Y-%m-%d %H:%M:%f', alive_until / 1000000.0, 'unixepoch') AS alive_until_utc, retired_at, strftime('%Y-%m-%d %H:%M:%f', retired_at / 1000000.0, 'unixepoch') AS retired_utc, created_at, strftime('%Y-%m-%d %H:%M:%f', created_at / 1000000.0, 'unixepoch') AS created_utc, CASE WHEN hex(substr(body, 1, 1)) >= '20' THEN CAST(body AS TEXT) END AS body FROM resources;
CREATE VIEW v_workers AS SELECT id, name, pid, host, capacity, started_at, strftime('%Y-%m-%d %H:%M:%f', started_at / 1000000.0, 'unixepoch') AS started_utc, last_seen_at, strftime('%Y-%m-%d %H:%M:%f', last_seen_at / 1000000.0, 'unixepoch') AS last_seen_utc, stopped_at, strftime('%Y-%m-%d %H:%M:%f', stopped_at / 1000000.0, 'unixepoch') AS stopped_utc, (SELECT count(*) FROM leases WHERE leases.worker_id = workers.id) AS running FROM workers;
CREATE VIEW v_runs AS SELECT id, state, epoch, alive_until, strftime('%Y-%m-%d %H:%M:%f', alive_until / 1000000.0, 'unixepoch') AS alive_until_utc, created_at, strftime('%Y-%m-%d %H:%M:%f', created_at / 1000000.0, 'unixepoch') AS created_utc, finished_at, strftime('%Y-%m-%d %H:%M:%f', finished_at / 1000000.0, 'unixepoch') AS finished_utc, CASE WHEN hex(substr(config, 1, 1)) >= '20' THEN CAST(config AS TEXT) END AS config, CASE WHEN hex(substr(summary, 1, 1)) >= '20' THEN CAST(summary AS TEXT) END AS summary FROM runs;
CREATE VIEW v_rejections AS SELECT source, reason, n, example, last_at, strftime('%Y-%m-%d %H:%M:%f', last_at / 1000000.0, 'unixepoch') AS last_utc FROM rejections;
COMMIT;
