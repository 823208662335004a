-- A store of schema version 2: calls without audits, one that failed, one that came late.
PRAGMA user_version = 2;
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
INSERT INTO "attempts" VALUES('ro-afa0a0af9a971f509932',1,1,'succeeded',NULL,NULL,'w',NULL,'cf5e387d38f0a3d92b99ae0fe8d2d1dafc9219f442c74b63146fc50a407e5b61','adac4bd900a69c6bbd6cb4d591c4a8f1',1000000000000,1000000000000);
INSERT INTO "attempts" VALUES('ro-e1207be020aade3f8608',1,1,'running',NULL,NULL,'w',NULL,'bbedbdd56636e338a152cfc2be8dfb74554730beabdf475c68fb53a804adecd3','adac4bd900a69c6bbd6cb4d591c4a8f1',1000000000000,NULL);
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
INSERT INTO "counters" VALUES('',-1,'train','default','queued','',0);
INSERT INTO "counters" VALUES('run-1',2,'train','default','queued','',0);
INSERT INTO "counters" VALUES('',-1,'train','default','running','',1);
INSERT INTO "counters" VALUES('run-1',2,'train','default','running','',0);
INSERT INTO "counters" VALUES('run-1',2,'train','default','succeeded','',1);
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
	PRIMARY KEY (seq), 
	UNIQUE (id)
);
INSERT INTO "generations" VALUES(1,'g1','g1','ro-afa0a0af9a971f509932',1,0,'m',NULL,NULL,'ok',NULL,X'010000000200000003000000',X'0400000005000000',X'000000BF000080BE',X'7B7D',NULL,NULL,NULL,X'7B226D65737361676573223A5B7B22726F6C65223A2275736572222C22636F6E74656E74223A226869227D5D7D',X'7B22726F6C65223A22617373697374616E74222C22636F6E74656E74223A22796F227D',1,0.1,0);
INSERT INTO "generations" VALUES(2,'g2','g2','ro-afa0a0af9a971f509932',1,0,'m',NULL,NULL,'error','no',NULL,NULL,NULL,X'7B7D',NULL,NULL,NULL,X'7B7D',NULL,1,0.1,0);
INSERT INTO "generations" VALUES(3,'g3','g3','ro-afa0a0af9a971f509932',1,0,'m',NULL,NULL,'ok',NULL,NULL,NULL,NULL,X'7B7D',NULL,NULL,NULL,X'7B7D',NULL,1,0.1,1);
INSERT INTO "generations" VALUES(4,'g4','g4','ro-e1207be020aade3f8608',1,0,'m',NULL,NULL,'ok',NULL,NULL,NULL,NULL,X'7B7D',NULL,NULL,NULL,X'7B7D',NULL,1,0.1,0);
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
INSERT INTO "leases" VALUES('ro-e1207be020aade3f8608',1,1,'w','default',60000000,1000060000000,1001800000000);
CREATE TABLE meta (
	"key" TEXT NOT NULL, 
	value BLOB NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "meta" VALUES('secret',X'585B3F66A83784EFE19E24ED373F9E42DEF420139161CEBE67B924CF0081B839');
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
INSERT INTO "rewards" VALUES(1,'ro-afa0a0af9a971f509932',1,'reward','agent','end',1.0,1000000000000);
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
INSERT INTO "rollouts" VALUES(1,'ro-afa0a0af9a971f509932','succeeded','train','default',0,'run-1',2,NULL,X'31',X'7B22617474656D70745F74696D656F7574223A313830302E302C226D61785F617474656D707473223A332C226D61785F6C6F7374223A332C2272657472795F6F6E223A5B22696E667261737472756374757265222C22746F6F6C222C226C6F7374225D2C2272657472795F64656C6179223A302E302C2272657472795F64656C617973223A7B7D7D',X'7B7D',NULL,NULL,NULL,NULL,NULL,1,0,0,0,2,NULL,NULL,NULL,1000000000000,1000000000000,'54c71ac1485cf0b75fdf5c71a37fc362','54e8095e94229eea988374af4c37aec4458d5bc93aa39fbab791057f75f0a9bd',NULL,1796018083803544);
INSERT INTO "rollouts" VALUES(2,'ro-e1207be020aade3f8608','running','train','default',0,NULL,NULL,NULL,X'32',X'7B22617474656D70745F74696D656F7574223A313830302E302C226D61785F617474656D707473223A332C226D61785F6C6F7374223A332C2272657472795F6F6E223A5B22696E667261737472756374757265222C22746F6F6C222C226C6F7374225D2C2272657472795F64656C6179223A302E302C2272657472795F64656C617973223A7B7D7D',X'7B7D',NULL,NULL,NULL,NULL,NULL,1,0,0,0,1,NULL,NULL,NULL,1000000000000,NULL,'ec9e1e414c28d690dd2c561007f3a36e','117fa13a51a63359c0c7d8f85a78baa5684513c6fd985724c085f80cf9dd330a',NULL,1796018083459247);
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
CREATE INDEX rollouts_revision ON rollouts (revision, seq);
CREATE INDEX rollouts_state ON rollouts (state, seq);
CREATE INDEX rollouts_ready ON rollouts (queue, priority, seq, resources_id) WHERE state = 'queued';
CREATE INDEX rollouts_group ON rollouts (group_key, seq) WHERE group_key IS NOT NULL;
CREATE INDEX rollouts_due ON rollouts (available_at) WHERE available_at IS NOT NULL;
CREATE INDEX rollouts_created ON rollouts (created_at, seq);
CREATE INDEX rollouts_run ON rollouts (run_id, seq);
CREATE INDEX rollouts_resources ON rollouts (resources_id) WHERE resources_id IS NOT NULL;
CREATE INDEX rollouts_finished ON rollouts (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX ix_leases_queue ON leases (queue);
CREATE INDEX ix_attempts_request_id ON attempts (request_id);
CREATE INDEX ix_attempts_resources_id ON attempts (resources_id);
CREATE INDEX spans_operation ON spans (operation, received_at, seq) WHERE operation IS NOT NULL;
CREATE INDEX spans_attempt ON spans (rollout_id, attempt, start_ns);
CREATE INDEX spans_trace ON spans (trace_id, seq);
CREATE INDEX spans_unattached ON spans (received_at, seq) WHERE rollout_id IS NULL;
CREATE INDEX spans_received ON spans (received_at, seq);
CREATE INDEX generations_attempt ON generations (rollout_id, attempt, started_at);
CREATE INDEX ix_blob_uses_owner ON blob_uses (owner);
COMMIT;
