"""Writes deploy/grafana/dashboards/lorry.json and its copy in the Helm chart. Run by `make docs`; a test compares.

Rows go from the question one asks first (does every engine serve the newest version?) to the parts that answer it.
Every family of docs/METRICS.md appears here or in an alert.
"""

import json
import pathlib
import sys

from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, QueryVariable, Row
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DataSourceRef, VariableOption, VariableRefresh

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUTPUTS = (ROOT / "deploy/grafana/dashboards/lorry.json", ROOT / "helm/lorry/files/lorry-dashboard.json")
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
PER_INSTANCE = 'job=~"$job", instance=~"$instance"'
PER_ADAPTER = 'job=~"$job", adapter=~"$adapter"'
PER_POOL = 'job=~"$job", adapter=~"$adapter", pool=~"$pool"'

# (title, unit, description, [(expression, legend)])
SERVING = [
    ("Version by adapter", "none", "What is stored, what was decided, and what each door serves. The lines meet when a sync has ended everywhere.", [
        (f"max by (adapter) (lorry_newest_version{{{PER_ADAPTER}}})", "{{adapter}} newest"),
        (f"max by (adapter, pool) (lorry_desired_version{{{PER_POOL}}})", "{{adapter}} {{pool}} desired"),
        ('lorry_proxy_observed_version{job=~"$job", instance=~"$instance", adapter=~"$adapter"}', "{{adapter}} {{instance}}"),
    ]),
    ("Version lag", "none", "Decisions that the READY member furthest behind has not followed yet.", [
        (f"max by (adapter, pool) (lorry_member_version_lag_max{{{PER_POOL}}})", "{{adapter}} {{pool}}"),
    ]),
    ("Sync phases, p50 and p99", "s", "Staging is fetch and load on every member, commit one durable record, activate the flip at the doors.", [
        ('histogram_quantile(0.5, sum by (le, phase) (rate(lorry_sync_phase_seconds_bucket{job=~"$job"}[$__rate_interval])))', "{{phase}} p50"),
        ('histogram_quantile(0.99, sum by (le, phase) (rate(lorry_sync_phase_seconds_bucket{job=~"$job"}[$__rate_interval])))', "{{phase}} p99"),
    ]),
    ("Publish to serving", "s", "Uploads, from their beginning until they are stored; and from a stored version until every engine that can serves it, waits included.", [
        ('histogram_quantile(0.5, sum by (le) (rate(lorry_store_upload_seconds_bucket{job=~"$job"}[$__rate_interval])))', "uploads p50"),
        ('histogram_quantile(0.99, sum by (le) (rate(lorry_store_upload_seconds_bucket{job=~"$job"}[$__rate_interval])))', "uploads p99"),
        (f"histogram_quantile(0.5, sum by (le, adapter) (rate(lorry_stored_to_serving_seconds_bucket{{{PER_POOL}}}[$__rate_interval])))", "{{adapter}} p50"),
        (f"histogram_quantile(0.99, sum by (le, adapter) (rate(lorry_stored_to_serving_seconds_bucket{{{PER_POOL}}}[$__rate_interval])))", "{{adapter}} p99"),
    ]),
    ("Since the last version", "s", "Time since a version was last stored, and last served everywhere. A line that only grows means that nothing new comes: see whether training has stopped.", [
        ('time() - max(lorry_store_last_stored_timestamp_seconds{job=~"$job"} > 0)', "stored"),
        (f"time() - max by (adapter, pool) (lorry_last_serving_timestamp_seconds{{{PER_POOL}}})", "{{adapter}} {{pool}} served"),
    ]),
    ("Syncs by result", "ops", "Syncs that ended a second.", [
        ('sum by (result) (rate(lorry_sync_total{job=~"$job"}[$__rate_interval]))', "{{result}}"),
    ]),
]
FLEET = [
    ("Members by state", "none", "The roster. Only READY members are staged on.", [
        ('sum by (pool, state) (lorry_members{job=~"$job", pool=~"$pool"})', "{{pool}} {{state}}"),
    ]),
    ("Blocked syncs", "none", "1 while a version waits, by the reason it waits for.", [
        (f"max by (adapter, pool, reason) (lorry_sync_blocked{{{PER_POOL}}})", "{{adapter}} {{pool}} {{reason}}"),
    ]),
    ("Epoch and term", "none", "The epoch grows with each decision, the term with each start of the orchestrator.", [
        (f"max by (adapter, pool) (lorry_sync_epoch{{{PER_POOL}}})", "{{adapter}} {{pool}} epoch"),
        ('max(lorry_orchestrator_term{job=~"$job"})', "term"),
    ]),
    ("Leases and poisoned versions", "none", "Leases keep versions loaded. A poisoned version killed engines and is not staged any more.", [
        ('sum(lorry_leases{job=~"$job"})', "leases"),
        ('sum(lorry_poisoned_versions{job=~"$job"})', "poisoned"),
    ]),
]
ENGINES = [
    ("Slots", "none", "Loaded versions against the engine's slots; retained ones wait for lag, aliases, leases or requests.", [
        (f"lorry_proxy_loaded_versions{{{PER_INSTANCE}}}", "{{instance}} loaded"),
        (f"lorry_proxy_retained_versions{{{PER_INSTANCE}}}", "{{instance}} retained"),
        (f"lorry_proxy_slots{{{PER_INSTANCE}}}", "{{instance}} slots"),
    ]),
    ("Gap to the trainer", "none", "How far each engine's log-probabilities of the reference that the trainer published with the served version are from the trainer's, in nats: importance weights are about exp of it away from 1. Beyond the policy's probe_gap a version is refused.", [
        ('lorry_proxy_reference_gap{job=~"$job", instance=~"$instance", adapter=~"$adapter"}', "{{adapter}} {{instance}} {{over}}"),
    ]),
    ("Loads, p99", "s", "From the load call until the engine has answered it; the probe after it is not in it.", [
        (f"histogram_quantile(0.99, sum by (le, instance) (rate(lorry_proxy_load_seconds_bucket{{{PER_INSTANCE}}}[$__rate_interval])))", "{{instance}}"),
    ]),
    ("Unloads by outcome", "ops", "A missed deadline wedges SGLang: its engine must be restarted.", [
        (f"sum by (outcome) (rate(lorry_proxy_unload_total{{{PER_INSTANCE}}}[$__rate_interval]))", "{{outcome}}"),
    ]),
    ("Engine troubles", "none", "New lives of engine processes, engines that need a restart.", [
        (f"increase(lorry_proxy_engine_boots_total{{{PER_INSTANCE}}}[$__rate_interval])", "{{instance}} boots"),
        (f"lorry_proxy_wedged{{{PER_INSTANCE}}}", "{{instance}} wedged"),
        (f"lorry_proxy_engine_paused{{{PER_INSTANCE}}}", "{{instance}} paused"),
        (f"lorry_proxy_framework_pause{{{PER_INSTANCE}}}", "{{instance}} paused by a framework"),
        (f"increase(lorry_proxy_framework_pauses_overdue_total{{{PER_INSTANCE}}}[$__rate_interval])", "{{instance}} left paused by a framework"),
    ]),
    ("Pauses, p99", "s", "From asking an engine to pause until it said that it goes on (policy quiesce, or a framework's).", [
        (f"histogram_quantile(0.99, sum by (le, instance) (rate(lorry_proxy_pause_seconds_bucket{{{PER_INSTANCE}}}[$__rate_interval])))", "{{instance}}"),
    ]),
    ("Adapters on demand", "ops", "Loads because requests waited, and adapters that left for them (policy residency=on_demand). Many of both: more adapters are in use than the engine has slots.", [
        (f"sum by (instance) (rate(lorry_proxy_demand_loads_total{{{PER_INSTANCE}}}[$__rate_interval]))", "{{instance}} loaded"),
        (f"sum by (instance) (rate(lorry_proxy_demand_evictions_total{{{PER_INSTANCE}}}[$__rate_interval]))", "{{instance}} left"),
    ]),
    ("Bindings", "none", "Names that frameworks bound at doors by themselves, by where their adapter stands. Those that are away come back for their next request; many of them, and waits below: more are in use than the engine has slots.", [
        (f"sum by (state) (lorry_proxy_bindings{{{PER_INSTANCE}}})", "{{state}}"),
    ]),
    ("Requests' waits for a load, p99", "s", "How long requests waited at the door for an adapter that is loaded on demand, those that were refused in the end included.", [
        (f"histogram_quantile(0.99, sum by (le, instance) (rate(lorry_door_demand_wait_seconds_bucket{{{PER_INSTANCE}}}[$__rate_interval])))", "{{instance}}"),
    ]),
]
DOOR = [
    ("Requests by code", "reqps", "Answered at the doors.", [
        (f"sum by (code) (rate(lorry_door_requests_total{{{PER_INSTANCE}}}[$__rate_interval]))", "{{code}}"),
    ]),
    ("Requests by adapter", "reqps", "Admitted at the doors, by the adapter that they name; @base is the base model.", [
        (f"sum by (adapter) (rate(lorry_door_adapter_requests_total{{{PER_INSTANCE}, adapter=~\"$adapter|@base|lorry.binding\"}}[$__rate_interval]))", "{{adapter}}"),
    ]),
    ("Reply bytes by adapter", "Bps", "What the doors answered, by the adapter that was asked.", [
        (f"sum by (adapter) (rate(lorry_door_adapter_reply_bytes_total{{{PER_INSTANCE}, adapter=~\"$adapter|@base|lorry.binding\"}}[$__rate_interval]))", "{{adapter}}"),
    ]),
    ("Refused by reason", "reqps", "Refused by the door itself, before an engine saw them.", [
        (f"sum by (reason) (rate(lorry_door_refused_total{{{PER_INSTANCE}}}[$__rate_interval]))", "{{reason}}"),
    ]),
    ("Latency, p50 and p99", "s", "First byte and whole request, the engine's time included.", [
        (f"histogram_quantile(0.5, sum by (le) (rate(lorry_door_first_byte_seconds_bucket{{{PER_INSTANCE}}}[$__rate_interval])))", "first byte p50"),
        (f"histogram_quantile(0.99, sum by (le) (rate(lorry_door_first_byte_seconds_bucket{{{PER_INSTANCE}}}[$__rate_interval])))", "first byte p99"),
        (f"histogram_quantile(0.99, sum by (le) (rate(lorry_door_request_seconds_bucket{{{PER_INSTANCE}}}[$__rate_interval])))", "request p99"),
    ]),
    ("In flight", "none", "Requests in flight, by the lag of their version; and those that wait at the door, for a sync, a version or a load.", [
        (f"sum by (lag) (lorry_proxy_in_flight_by_lag{{{PER_INSTANCE}}})", "lag {{lag}}"),
        ('sum by (adapter) (lorry_proxy_in_flight{job=~"$job", instance=~"$instance", adapter=~"$adapter"})', "{{adapter}}"),
        (f"sum(lorry_door_live_requests{{{PER_INSTANCE}}})", "all"),
        (f"sum(lorry_door_held_requests{{{PER_INSTANCE}}})", "waiting at the door"),
    ]),
    ("Lag of requests, p99", "none", "Decisions that a request's version was behind, at its admission and when its reply had ended.", [
        (f"histogram_quantile(0.99, sum by (le, adapter) (rate(lorry_door_admitted_lag_decisions_bucket{{{PER_INSTANCE}}}[$__rate_interval])))", "{{adapter}} admitted"),
        (f"histogram_quantile(0.99, sum by (le, adapter) (rate(lorry_door_done_lag_decisions_bucket{{{PER_INSTANCE}}}[$__rate_interval])))", "{{adapter}} done"),
        (f"sum by (rule) (rate(lorry_door_flipped_total{{{PER_INSTANCE}}}[$__rate_interval]))", "flipped a second, {{rule}}"),
    ]),
]
BYTES = [
    ("Transfer rate", "Bps", "Image bytes by transport. Bytes over grpc where ucx is expected mean that it fell back.", [
        (f"sum by (transport, direction) (rate(lorry_transfer_bytes_total{{{PER_INSTANCE}}}[$__rate_interval]))", "{{transport}} {{direction}}"),
        (f"sum by (transport) (rate(lorry_proxy_fetch_bytes_total{{{PER_INSTANCE}}}[$__rate_interval]))", "fetched over {{transport}}"),
    ]),
    ("Images by source", "none", "Versions that came to proxies in ten minutes: fetched from the store, or shared by another proxy of the host.", [
        (f"sum by (from) (increase(lorry_proxy_images_total{{{PER_INSTANCE}}}[10m]))", "from {{from}}"),
    ]),
    ("Followers that answer", "none", "Other nodes of engines that run on several. One that does not answer keeps new versions from its engine.", [
        (f"lorry_proxy_followers_answering{{{PER_INSTANCE}}}", "{{instance}}"),
    ]),
    ("Transfer time, p99", "s", "One image from its first byte to its last checked one.", [
        (f"histogram_quantile(0.99, sum by (le, transport) (rate(lorry_transfer_seconds_bucket{{{PER_INSTANCE}}}[$__rate_interval])))", "{{transport}} p99"),
    ]),
    ("Store", "none", "Versions kept, uploads open, versions collected.", [
        ('sum(lorry_store_versions{job=~"$job"})', "versions"),
        ('sum(lorry_store_uploads_open{job=~"$job"})', "uploads open"),
        ('sum(increase(lorry_store_gc_deleted_total{job=~"$job"}[$__rate_interval]))', "collected"),
    ]),
    ("Stored bytes by adapter", "bytes", "What each adapter's stored images take: who fills the store's disk. A policy's quota_bytes and store_keep bound it.", [
        ('sum by (adapter) (lorry_store_adapter_bytes{job=~"$job", adapter=~"$adapter|other"})', "{{adapter}}"),
    ]),
    ("Uploads and transfer errors", "none", "Uploads that ended, by result and reason, and transfers that failed.", [
        ('sum by (result, reason) (increase(lorry_store_uploads_total{job=~"$job"}[$__rate_interval]))', "{{result}} {{reason}}"),
        (f"sum by (transport, reason) (increase(lorry_transfer_errors_total{{{PER_INSTANCE}}}[$__rate_interval]))", "{{transport}} {{reason}}"),
    ]),
]
PROGRAMS = [
    ("Connections", "none", "1 while the orchestrator hears the store, and each proxy the orchestrator.", [
        ('min(lorry_store_connected{job=~"$job"})', "store"),
        (f"lorry_proxy_attached{{{PER_INSTANCE}}}", "{{instance}}"),
    ]),
    ("Calls, p99, and those that failed", "s", "gRPC calls by method; beside them how many a second did not end with OK.", [
        (f"histogram_quantile(0.99, sum by (le, method) (rate(lorry_rpc_seconds_bucket{{{PER_INSTANCE}}}[$__rate_interval])))", "{{method}} p99"),
        ('sum by (method, code) (rate(lorry_rpc_seconds_count{job=~"$job", instance=~"$instance", code!="OK"}[$__rate_interval]))', "{{method}} {{code}}"),
    ]),
    ("Memory", "bytes", "Resident memory of each program.", [
        (f"process_resident_memory_bytes{{{PER_INSTANCE}}}", "{{instance}}"),
    ]),
    ("Processor", "none", "Processors in use by each program.", [
        (f"rate(process_cpu_seconds_total{{{PER_INSTANCE}}}[$__rate_interval])", "{{instance}}"),
    ]),
    ("Descriptors", "percentunit", "Open file descriptors as a share of what each program may open.", [
        (f"process_open_fds{{{PER_INSTANCE}}} / process_max_fds{{{PER_INSTANCE}}}", "{{instance}}"),
    ]),
    ("Disk", "bytes", "Free where the store keeps its data, beside what the images take.", [
        ('min(lorry_store_disk_free_bytes{job=~"$job"})', "free"),
        ('sum(lorry_store_blob_bytes{job=~"$job"})', "images"),
    ]),
]
STATS = [
    ("Members ready", "none", "Members that serve and can be staged on.", 'sum(lorry_members{job=~"$job", pool=~"$pool", state="READY"})'),
    ("Largest lag", "none", "Decisions that the worst READY member is behind.", f"max(lorry_member_version_lag_max{{{PER_POOL}}})"),
    ("Stored", "bytes", "Bytes of all stored images.", 'sum(lorry_store_blob_bytes{job=~"$job"})'),
    ("Programs", "none", "Programs that are scraped.", 'count(lorry_build_info{job=~"$job"})'),
]


def query(expression: str, legend: str, index: int) -> Dataquery:
    return Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + index)).datasource(SOURCE)


def graph(title: str, unit: str, description: str, queries: list[tuple[str, str]]) -> TimeSeries:
    panel = TimeSeries().title(title).unit(unit).description(description).datasource(SOURCE).min(0).height(8).span(6)
    for index, (expression, legend) in enumerate(queries):
        panel = panel.with_target(query(expression, legend, index))
    return panel


def variable(name: str, label_query: str, description: str) -> QueryVariable:
    return (
        QueryVariable(name).label(name).description(description).query(label_query).datasource(SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).multi(True).include_all(True).all_value(".*")
        .current(VariableOption(selected=True, text="All", value="$__all"))
    )


def build() -> str:
    dashboard = (
        Dashboard("Lorry").uid("lorry-overview").tags(["lorry"]).description("Fresh LoRA adapters, from trainers to engines.")
        .refresh("10s").time("now-30m", "now").readonly().tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(DatasourceVariable("datasource").label("data source").type("prometheus"))
        .with_variable(variable("job", "label_values(lorry_build_info, job)", "Scrape job"))
        .with_variable(variable("instance", 'label_values(lorry_build_info{job=~"$job"}, instance)', "Program instance"))
        .with_variable(variable("pool", 'label_values(lorry_members{job=~"$job"}, pool)', "Pool of engines"))
        .with_variable(variable("adapter", 'label_values(lorry_newest_version{job=~"$job"}, adapter)', "Adapter"))
    )
    for title, unit, description, expression in STATS:
        dashboard = dashboard.with_panel(
            Stat().title(title).unit(unit).description(description).datasource(SOURCE).height(4).span(6)
            .with_target(query(expression, title, 0))
        )
    rows = (("Is the newest version served?", SERVING), ("Fleet", FLEET), ("Engines", ENGINES), ("Doors", DOOR), ("Bytes and store", BYTES), ("Programs", PROGRAMS))
    for title, panels in rows:
        dashboard = dashboard.with_row(Row(title))
        for panel in panels:
            dashboard = dashboard.with_panel(graph(*panel))
    model = json.loads(json.dumps(dashboard.build(), cls=JSONEncoder))
    model["schemaVersion"] = 39
    for number, panel in enumerate(model["panels"], start=1):
        panel["id"] = number
    return json.dumps(model, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(build())
    else:
        text = build()
        for output in OUTPUTS:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(text)
