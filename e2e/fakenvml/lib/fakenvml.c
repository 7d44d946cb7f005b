// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// A stand-in for libnvidia-ml.so.1 on machines without a GPU: the calls of NVML that Muster makes, answered from two text
// files, so that the real go-nvml code runs in tests and in the demo. See ../doc.go for the files and for who
// counts as a user of a GPU. Nothing here trusts its input: what cannot be read is left out.

#define _GNU_SOURCE
#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum {
	MAX_GPUS = 256,
	MAX_LINKS = 36, // NVML_NVLINK_MAX_LINKS
	MAX_EVENTS = 256,
	MAX_SETS = 64,
	LINE = 1024,
};

enum { // nvmlReturn_t
	SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
	DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, LIB_RM_VERSION_MISMATCH = 18, MEMORY = 20,
	ARGUMENT_VERSION_MISMATCH = 25,
};

enum { MEMORY_CLOCK = 2 }; // nvmlClockType_t

enum { REMOTE_GPU = 0, REMOTE_SWITCH = 2 }; // nvmlIntNvLinkDeviceType_t

enum { // fields of nvmlDeviceGetFieldValues
	FIELD_SPEED_COMMON = 90, FIELD_LINK_COUNT = 91, FIELD_TX = 138, FIELD_RX = 139, FIELD_SPEED = 164,
};

// --- layouts of NVML's ABI -------------------------------------------------------------------------------------------

typedef struct {
	char busIdLegacy[16];
	unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
	char busId[32];
} pci_info;

typedef struct { unsigned long long total, free, used; } memory_info;
typedef struct { unsigned long long total, free, used; } bar1_info;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_info;
typedef struct { unsigned pid; unsigned long long used; } process_info_v1;

typedef struct {
	void *device;
	unsigned long long type, data;
	unsigned gpu_instance, compute_instance;
} event_data;

typedef struct {
	unsigned field, scope;
	long long timestamp, latency;
	int type, result;
	union { unsigned u; unsigned long long ull; } value;
} field_value;

typedef struct {
	unsigned version;
	unsigned char cluster[16];
	int status;
	unsigned clique;
	unsigned char state;
	unsigned health;
	unsigned char summary; // from version 3 on
} fabric_info;

// --- the machine -----------------------------------------------------------------------------------------------------

typedef struct {
	int present, remote; // remote: REMOTE_GPU or REMOTE_SWITCH
	int peer;            // index of the remote GPU
	unsigned mbps, version;
	int down; // by the control file
} nvlink;

typedef struct {
	char uuid[96], model[96], pci[32];
	unsigned minor;
	int numa, has_fabric;
	unsigned long long memory_mib;

	// The board; 0: not told. display and persistence are "Enabled" or "Disabled".
	unsigned long long bar1_mib;
	unsigned power_w, cores_mhz, memory_mhz, pcie_generation, pcie_width;
	char display[16], persistence[16];

	unsigned char cluster[16];
	unsigned clique, fabric_state;
	int fabric_status;
	nvlink link[MAX_LINKS];

	// What the control file may change; see reset_control for the values at rest.
	int lost, mig;
	long calls_left; // -1: any number; 0: lost from now on
	unsigned long long corrected, uncorrected, used_mib, rx_kib, tx_kib;
	unsigned remap_pending, remap_failure, percent, celsius, milliwatt;
} gpu;

typedef struct { unsigned long long sequence, xid; int gpu; } event;
typedef struct { int used; unsigned long long seen; unsigned char registered[MAX_GPUS]; } event_set;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // protects everything below
static int inits;
static char driver[80];
static int cuda;
static gpu gpus[MAX_GPUS];
static int gpu_count;
static unsigned char path[MAX_GPUS][MAX_GPUS]; // nvmlGpuTopologyLevel_t
static event events[MAX_EVENTS];
static int event_count;
static event_set sets[MAX_SETS];
static int init_result; // by the control file
static struct stat control_seen;

// number reads a whole decimal number of at most max.
static int number(const char *text, unsigned long long max, unsigned long long *value)
{
	char *end;
	if (text == NULL || *text < '0' || *text > '9')
		return 0;
	*value = strtoull(text, &end, 10);
	return *end == '\0' && *value <= max;
}

static int index_of(const char *text, int *index)
{
	unsigned long long value;
	if (!number(text, MAX_GPUS - 1, &value) || (int)value >= gpu_count)
		return 0;
	*index = (int)value;
	return 1;
}

static void copy(char *to, size_t size, const char *from)
{
	snprintf(to, size, "%s", from);
}

// cluster_of reads a UUID into 16 bytes.
static int cluster_of(const char *text, unsigned char bytes[16])
{
	int digits = 0;
	memset(bytes, 0, 16);
	for (; *text != '\0' && *text != '/'; text++) {
		char digit[2] = {*text, '\0'};
		char *end;
		if (*text == '-')
			continue;
		long value = strtol(digit, &end, 16);
		if (*end != '\0' || digits == 32)
			return 0;
		bytes[digits / 2] |= (unsigned char)(value << (digits % 2 == 0 ? 4 : 0));
		digits++;
	}
	return digits == 32;
}

// value_of returns what follows key= in a word, or NULL.
static const char *value_of(const char *word, const char *key)
{
	size_t n = strlen(key);
	return strncmp(word, key, n) == 0 && word[n] == '=' ? word + n + 1 : NULL;
}

// board_word reads a word about the board, and returns whether it was one.
static int board_word(gpu *g, const char *word)
{
	const char *v;
	unsigned long long n;
	if ((v = value_of(word, "power_w")) != NULL && number(v, UINT_MAX / 1000, &n))
		g->power_w = (unsigned)n;
	else if ((v = value_of(word, "bar1_mib")) != NULL && number(v, 1ull << 40, &n))
		g->bar1_mib = n;
	else if ((v = value_of(word, "cores_mhz")) != NULL && number(v, UINT_MAX, &n))
		g->cores_mhz = (unsigned)n;
	else if ((v = value_of(word, "memory_mhz")) != NULL && number(v, UINT_MAX, &n))
		g->memory_mhz = (unsigned)n;
	else if ((v = value_of(word, "pcie_generation")) != NULL && number(v, UINT_MAX, &n))
		g->pcie_generation = (unsigned)n;
	else if ((v = value_of(word, "pcie_width")) != NULL && number(v, UINT_MAX, &n))
		g->pcie_width = (unsigned)n;
	else if ((v = value_of(word, "display")) != NULL)
		copy(g->display, sizeof g->display, v);
	else if ((v = value_of(word, "persistence")) != NULL)
		copy(g->persistence, sizeof g->persistence, v);
	else
		return 0;
	return 1;
}

static void gpu_word(gpu *g, const char *word)
{
	const char *v;
	unsigned long long n;
	if (board_word(g, word))
		return;
	if ((v = value_of(word, "uuid")) != NULL)
		copy(g->uuid, sizeof g->uuid, v);
	else if ((v = value_of(word, "pci")) != NULL)
		copy(g->pci, sizeof g->pci, v);
	else if ((v = value_of(word, "minor")) != NULL && number(v, UINT_MAX, &n))
		g->minor = (unsigned)n;
	else if ((v = value_of(word, "numa")) != NULL)
		g->numa = number(v, 511, &n) ? (int)n : -1;
	else if ((v = value_of(word, "memory_mib")) != NULL && number(v, 1ull << 40, &n))
		g->memory_mib = n;
	else if ((v = value_of(word, "fabric")) != NULL)
		g->has_fabric = cluster_of(v, g->cluster);
	else if ((v = value_of(word, "clique")) != NULL && number(v, UINT_MAX, &n))
		g->clique = (unsigned)n;
	else if ((v = value_of(word, "fabric_state")) != NULL && number(v, 3, &n))
		g->fabric_state = (unsigned)n;
	else if ((v = value_of(word, "fabric_status")) != NULL && number(v, 999, &n))
		g->fabric_status = (int)n;
}

// read_gpu reads "gpu key=value ... model=the rest of the line".
static void read_gpu(char *rest)
{
	if (gpu_count == MAX_GPUS)
		return;
	gpu *g = &gpus[gpu_count++];
	memset(g, 0, sizeof *g);
	g->numa = -1;
	g->minor = (unsigned)(gpu_count - 1);
	g->fabric_state = 3;
	char *model = strstr(rest, "model=");
	if (model != NULL) {
		copy(g->model, sizeof g->model, model + strlen("model="));
		*model = '\0';
	}
	char *save;
	for (char *word = strtok_r(rest, " ", &save); word != NULL; word = strtok_r(NULL, " ", &save))
		gpu_word(g, word);
}

// read_link reads "link GPU LINK gpu|switch PEER MBPS VERSION".
static void read_link(char *words[])
{
	int i, peer = 0;
	unsigned long long n, mbps, version;
	if (!index_of(words[1], &i) || !number(words[2], MAX_LINKS - 1, &n) || words[3] == NULL)
		return;
	int through_switch = strcmp(words[3], "switch") == 0;
	if (!through_switch && !index_of(words[4], &peer))
		return;
	if (!number(words[5], UINT_MAX, &mbps) || !number(words[6], UINT_MAX, &version))
		return;
	gpus[i].link[n] = (nvlink){
		.present = 1, .remote = through_switch ? REMOTE_SWITCH : REMOTE_GPU, .peer = peer,
		.mbps = (unsigned)mbps, .version = (unsigned)version,
	};
}

// split cuts a line into at most 8 words; the others are NULL.
static void split(char *line, char *words[8])
{
	char *save;
	memset(words, 0, 8 * sizeof words[0]);
	char *word = strtok_r(line, " \t\r\n", &save);
	for (int i = 0; i < 8 && word != NULL; i++) {
		words[i] = word;
		word = strtok_r(NULL, " \t\r\n", &save);
	}
}

static void machine_line(char *line)
{
	char *words[8];
	unsigned long long n;
	int i, j;
	line[strcspn(line, "\r\n")] = '\0';
	if (strncmp(line, "gpu ", 4) == 0) {
		read_gpu(line + 4);
		return;
	}
	split(line, words);
	if (words[0] == NULL || words[1] == NULL)
		return;
	if (strcmp(words[0], "driver") == 0)
		copy(driver, sizeof driver, words[1]);
	else if (strcmp(words[0], "cuda") == 0 && number(words[1], INT_MAX, &n))
		cuda = (int)n;
	else if (strcmp(words[0], "link") == 0)
		read_link(words);
	else if (strcmp(words[0], "path") == 0 && index_of(words[1], &i) && index_of(words[2], &j) && number(words[3], 50, &n))
		path[i][j] = path[j][i] = (unsigned char)n;
}

static int read_machine(void)
{
	char line[LINE];
	const char *name = getenv("FAKENVML_MACHINE");
	FILE *file = name != NULL ? fopen(name, "re") : NULL;
	if (file == NULL)
		return DRIVER_NOT_LOADED;
	gpu_count = 0;
	memset(path, 0, sizeof path);
	driver[0] = '\0';
	cuda = 0;
	while (fgets(line, sizeof line, file) != NULL)
		machine_line(line);
	fclose(file);
	return SUCCESS;
}

// --- the control file ------------------------------------------------------------------------------------------------

static void reset_control(void)
{
	init_result = SUCCESS;
	event_count = 0;
	for (int i = 0; i < gpu_count; i++) {
		gpu *g = &gpus[i];
		g->lost = g->mig = 0;
		g->calls_left = -1;
		g->corrected = g->uncorrected = g->used_mib = g->rx_kib = g->tx_kib = 0;
		g->remap_pending = g->remap_failure = g->percent = 0;
		g->celsius = 35;
		g->milliwatt = 60000;
		for (int l = 0; l < MAX_LINKS; l++)
			g->link[l].down = 0;
	}
}

static void control_gpu(gpu *g, const char *key, const char *text)
{
	unsigned long long n = 1;
	if (key == NULL || (text != NULL && !number(text, ULLONG_MAX, &n)))
		return;
	unsigned small = n > UINT_MAX ? UINT_MAX : (unsigned)n;
	if (strcmp(key, "lost") == 0)
		g->lost = n != 0;
	else if (strcmp(key, "lost_after_calls") == 0)
		g->calls_left = n > LONG_MAX ? LONG_MAX : (long)n;
	else if (strcmp(key, "mig") == 0)
		g->mig = n != 0;
	else if (strcmp(key, "ecc_corrected") == 0)
		g->corrected = n;
	else if (strcmp(key, "ecc_uncorrected") == 0)
		g->uncorrected = n;
	else if (strcmp(key, "remap_pending") == 0)
		g->remap_pending = n != 0;
	else if (strcmp(key, "remap_failure") == 0)
		g->remap_failure = n != 0;
	else if (strcmp(key, "utilization_percent") == 0)
		g->percent = small;
	else if (strcmp(key, "memory_used_mib") == 0)
		g->used_mib = n < g->memory_mib ? n : g->memory_mib;
	else if (strcmp(key, "temperature_c") == 0)
		g->celsius = small;
	else if (strcmp(key, "power_mw") == 0)
		g->milliwatt = small;
	else if (strcmp(key, "nvlink_rx_kib") == 0)
		g->rx_kib = n;
	else if (strcmp(key, "nvlink_tx_kib") == 0)
		g->tx_kib = n;
	else if (strcmp(key, "link_down") == 0 && text != NULL && n < MAX_LINKS)
		g->link[n].down = 1;
}

static void control_line(char *line)
{
	char *words[8];
	unsigned long long sequence, xid;
	int i;
	split(line, words);
	if (words[0] == NULL || words[1] == NULL)
		return;
	if (strcmp(words[0], "gpu") == 0 && index_of(words[1], &i))
		control_gpu(&gpus[i], words[2], words[3]);
	else if (strcmp(words[0], "init") == 0 && strcmp(words[1], "driver_not_loaded") == 0)
		init_result = DRIVER_NOT_LOADED;
	else if (strcmp(words[0], "init") == 0 && strcmp(words[1], "version_mismatch") == 0)
		init_result = LIB_RM_VERSION_MISMATCH;
	else if (strcmp(words[0], "xid") == 0 && event_count < MAX_EVENTS && number(words[1], ULLONG_MAX, &sequence) &&
		 index_of(words[2], &i) && number(words[3], ULLONG_MAX, &xid))
		events[event_count++] = (event){.sequence = sequence, .gpu = i, .xid = xid};
}

// read_control reads the control file again if it is another one than last time. A file that is gone means that
// everything is at rest.
static void read_control(void)
{
	char line[LINE];
	struct stat now;
	const char *name = getenv("FAKENVML_CONTROL");
	memset(&now, 0, sizeof now);
	if (name == NULL || stat(name, &now) != 0)
		memset(&now, 0, sizeof now);
	if (now.st_ino == control_seen.st_ino && now.st_dev == control_seen.st_dev && now.st_size == control_seen.st_size &&
	    now.st_mtim.tv_sec == control_seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == control_seen.st_mtim.tv_nsec)
		return;
	control_seen = now;
	reset_control();
	FILE *file = name != NULL ? fopen(name, "re") : NULL;
	if (file == NULL)
		return;
	while (fgets(line, sizeof line, file) != NULL)
		control_line(line);
	fclose(file);
}

// --- entering and leaving --------------------------------------------------------------------------------------------

static int leave(int result)
{
	pthread_mutex_unlock(&lock);
	return result;
}

// enter takes the lock. If it does not return SUCCESS the caller must only leave.
static int enter(void)
{
	pthread_mutex_lock(&lock);
	if (inits == 0)
		return UNINITIALIZED;
	read_control();
	return SUCCESS;
}

static int answer(gpu *g)
{
	if (g->calls_left == 0)
		g->lost = 1;
	if (g->calls_left > 0)
		g->calls_left--;
	return g->lost ? GPU_IS_LOST : SUCCESS;
}

static int is_gpu(const void *handle)
{
	const char *h = handle, *first = (const char *)gpus;
	return h >= first && h < (const char *)(gpus + gpu_count) && (size_t)(h - first) % sizeof gpus[0] == 0;
}

// enter_gpu takes the lock for a call about one GPU, which counts as one of its calls left.
static int enter_gpu(gpu *g)
{
	int result = enter();
	if (result != SUCCESS)
		return result;
	return is_gpu(g) ? answer(g) : INVALID_ARGUMENT;
}

// enter_link is enter_gpu for a call about one NVLink.
static int enter_link(gpu *g, unsigned link)
{
	int result = enter_gpu(g);
	if (result != SUCCESS)
		return result;
	if (link >= MAX_LINKS)
		return INVALID_ARGUMENT;
	return g->link[link].present ? SUCCESS : NOT_SUPPORTED;
}

// --- NVML: the library -----------------------------------------------------------------------------------------------

API int nvmlInit_v2(void)
{
	pthread_mutex_lock(&lock);
	if (inits > 0) {
		inits++;
		return leave(SUCCESS);
	}
	int result = read_machine();
	if (result != SUCCESS)
		return leave(result);
	memset(sets, 0, sizeof sets);
	memset(&control_seen, 0, sizeof control_seen);
	reset_control();
	read_control();
	if (init_result == SUCCESS)
		inits = 1;
	return leave(init_result);
}

API int nvmlInitWithFlags(unsigned flags)
{
	(void)flags;
	return nvmlInit_v2();
}

API int nvmlShutdown(void)
{
	pthread_mutex_lock(&lock);
	if (inits == 0)
		return leave(UNINITIALIZED);
	inits--;
	return leave(SUCCESS);
}

API const char *nvmlErrorString(int result)
{
	switch (result) {
	case SUCCESS: return "The operation was successful";
	case UNINITIALIZED: return "Uninitialized";
	case INVALID_ARGUMENT: return "Invalid Argument";
	case NOT_SUPPORTED: return "Not Supported";
	case NOT_FOUND: return "Not Found";
	case INSUFFICIENT_SIZE: return "Insufficient Size";
	case DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case TIMEOUT: return "Timeout";
	case GPU_IS_LOST: return "GPU is lost";
	case LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
	case MEMORY: return "Insufficient Memory";
	case ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
	}
	return "Unknown Error";
}

static int put(char *to, unsigned size, const char *from)
{
	if (to == NULL)
		return INVALID_ARGUMENT;
	if (strlen(from) >= size)
		return INSUFFICIENT_SIZE;
	memcpy(to, from, strlen(from) + 1);
	return SUCCESS;
}

API int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
	int result = enter();
	return leave(result == SUCCESS ? put(version, length, driver) : result);
}

API int nvmlSystemGetCudaDriverVersion(int *version)
{
	int result = enter();
	if (result == SUCCESS)
		*version = cuda;
	return leave(result);
}

API int nvmlDeviceGetCount_v2(unsigned *count)
{
	int result = enter();
	if (result == SUCCESS)
		*count = (unsigned)gpu_count;
	return leave(result);
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu **device)
{
	int result = enter();
	if (result == SUCCESS && index >= (unsigned)gpu_count)
		result = INVALID_ARGUMENT;
	if (result == SUCCESS)
		result = answer(&gpus[index]);
	if (result == SUCCESS)
		*device = &gpus[index];
	return leave(result);
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, gpu **device)
{
	int result = enter();
	if (result != SUCCESS)
		return leave(result);
	for (int i = 0; i < gpu_count; i++) {
		if (strcmp(gpus[i].uuid, uuid) != 0)
			continue;
		*device = &gpus[i];
		return leave(answer(&gpus[i]));
	}
	return leave(NOT_FOUND);
}

// --- NVML: one GPU ---------------------------------------------------------------------------------------------------

API int nvmlDeviceGetName(gpu *g, char *name, unsigned length)
{
	int result = enter_gpu(g);
	return leave(result == SUCCESS ? put(name, length, g->model) : result);
}

API int nvmlDeviceGetUUID(gpu *g, char *uuid, unsigned length)
{
	int result = enter_gpu(g);
	return leave(result == SUCCESS ? put(uuid, length, g->uuid) : result);
}

API int nvmlDeviceGetIndex(gpu *g, unsigned *index)
{
	int result = enter_gpu(g);
	if (result == SUCCESS)
		*index = (unsigned)(g - gpus);
	return leave(result);
}

API int nvmlDeviceGetMinorNumber(gpu *g, unsigned *minor)
{
	int result = enter_gpu(g);
	if (result == SUCCESS)
		*minor = g->minor;
	return leave(result);
}

static void put_pci(pci_info *info, const char *text)
{
	unsigned domain = 0, bus = 0, device = 0;
	memset(info, 0, sizeof *info);
	sscanf(text, "%x:%x:%x", &domain, &bus, &device);
	info->domain = domain;
	info->bus = bus;
	info->device = device;
	info->pciDeviceId = 0x10de; // the vendor's half
	// As the real library does: eight digits of domain, upper case.
	snprintf(info->busId, sizeof info->busId, "%08X:%02X:%02X.0", domain, bus & 0xff, device & 0x1f);
	snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%04X:%02X:%02X.0", domain & 0xffff, bus & 0xff, device & 0x1f);
}

API int nvmlDeviceGetPciInfo_v3(gpu *g, pci_info *info)
{
	int result = enter_gpu(g);
	if (result == SUCCESS)
		put_pci(info, g->pci);
	return leave(result);
}

API int nvmlDeviceGetMemoryInfo(gpu *g, memory_info *info)
{
	int result = enter_gpu(g);
	if (result == SUCCESS)
		*info = (memory_info){.total = g->memory_mib << 20, .used = g->used_mib << 20, .free = (g->memory_mib - g->used_mib) << 20};
	return leave(result);
}

API int nvmlDeviceGetTopologyCommonAncestor(gpu *a, gpu *b, int *level)
{
	int result = enter_gpu(a);
	if (result == SUCCESS)
		result = is_gpu(b) ? answer(b) : INVALID_ARGUMENT;
	if (result == SUCCESS && path[a - gpus][b - gpus] == 0)
		result = NOT_SUPPORTED;
	if (result == SUCCESS)
		*level = path[a - gpus][b - gpus];
	return leave(result);
}

API int nvmlDeviceGetEccMode(gpu *g, int *current, int *pending)
{
	int result = enter_gpu(g);
	if (result == SUCCESS)
		*current = *pending = 1;
	return leave(result);
}

API int nvmlDeviceGetTotalEccErrors(gpu *g, int type, int counter, unsigned long long *count)
{
	(void)counter;
	int result = enter_gpu(g);
	if (result == SUCCESS)
		*count = type == 0 ? g->corrected : g->uncorrected;
	return leave(result);
}

API int nvmlDeviceGetUtilizationRates(gpu *g, utilization *rates)
{
	int result = enter_gpu(g);
	if (result == SUCCESS)
		*rates = (utilization){.gpu = g->percent, .memory = g->percent / 2};
	return leave(result);
}

API int nvmlDeviceGetTemperature(gpu *g, int sensor, unsigned *celsius)
{
	(void)sensor;
	int result = enter_gpu(g);
	if (result == SUCCESS)
		*celsius = g->celsius;
	return leave(result);
}

API int nvmlDeviceGetPowerUsage(gpu *g, unsigned *milliwatt)
{
	int result = enter_gpu(g);
	if (result == SUCCESS)
		*milliwatt = g->milliwatt;
	return leave(result);
}

// --- NVML: NVLink ----------------------------------------------------------------------------------------------------

API int nvmlDeviceGetNvLinkState(gpu *g, unsigned link, int *active)
{
	int result = enter_link(g, link);
	if (result == SUCCESS)
		*active = !g->link[link].down;
	return leave(result);
}

API int nvmlDeviceGetNvLinkVersion(gpu *g, unsigned link, unsigned *version)
{
	int result = enter_link(g, link);
	if (result == SUCCESS)
		*version = g->link[link].version;
	return leave(result);
}

API int nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu *g, unsigned link, pci_info *info)
{
	int result = enter_link(g, link);
	if (result == SUCCESS)
		put_pci(info, g->link[link].remote == REMOTE_SWITCH ? "0000:f0:00.0" : gpus[g->link[link].peer].pci);
	return leave(result);
}

static int field_of(gpu *g, field_value *f)
{
	f->type = 1;
	switch (f->field) {
	case FIELD_SPEED:
		if (f->scope >= MAX_LINKS || !g->link[f->scope].present || g->link[f->scope].mbps == 0)
			return NOT_SUPPORTED;
		f->value.u = g->link[f->scope].mbps;
		return SUCCESS;
	case FIELD_SPEED_COMMON:
		if (!g->link[0].present || g->link[0].mbps == 0)
			return NOT_SUPPORTED;
		f->value.u = g->link[0].mbps;
		return SUCCESS;
	case FIELD_TX:
	case FIELD_RX:
		if (!g->link[0].present)
			return NOT_SUPPORTED;
		f->type = 3;
		f->value.ull = f->field == FIELD_TX ? g->tx_kib : g->rx_kib;
		return SUCCESS;
	case FIELD_LINK_COUNT:
		for (f->value.u = 0; f->value.u < MAX_LINKS && g->link[f->value.u].present;)
			f->value.u++;
		return SUCCESS;
	}
	return NOT_SUPPORTED;
}

API int nvmlDeviceGetFieldValues(gpu *g, int count, field_value *values)
{
	int result = enter_gpu(g);
	for (int i = 0; result == SUCCESS && i < count; i++)
		values[i].result = field_of(g, &values[i]);
	return leave(result);
}

// --- NVML: users of a GPU --------------------------------------------------------------------------------------------

// names_uuid says whether the environment of a process holds the UUID.
static int names_uuid(const char *pid, const char *uuid)
{
	static char text[1 << 17]; // under the lock
	char name[64];
	snprintf(name, sizeof name, "/proc/%.20s/environ", pid);
	FILE *file = fopen(name, "re");
	if (file == NULL)
		return 0;
	size_t n = fread(text, 1, sizeof text, file);
	fclose(file);
	return memmem(text, n, uuid, strlen(uuid)) != NULL;
}

// holds says whether an open descriptor is the device node of the GPU, see ../doc.go.
static int holds(const char *pid, const char *descriptor, const gpu *g, const struct stat *node)
{
	char name[320], target[PATH_MAX], want[32];
	struct stat st;
	snprintf(name, sizeof name, "/proc/%.20s/fd/%.20s", pid, descriptor);
	ssize_t n = readlink(name, target, sizeof target - 1);
	if (n <= 0)
		return 0;
	target[n] = '\0';
	target[strcspn(target, " ")] = '\0'; // " (deleted)"
	snprintf(want, sizeof want, "nvidia%u", g->minor);
	const char *base = strrchr(target, '/');
	if (base == NULL || strcmp(base + 1, want) != 0 || stat(name, &st) != 0)
		return 0;
	if (st.st_dev == node->st_dev && st.st_ino == node->st_ino)
		return 1;
	return S_ISCHR(st.st_mode) && st.st_rdev == node->st_rdev && names_uuid(pid, g->uuid);
}

static int uses(const char *pid, const gpu *g, const struct stat *node)
{
	char name[64];
	int found = 0;
	snprintf(name, sizeof name, "/proc/%.20s/fd", pid);
	DIR *descriptors = opendir(name);
	if (descriptors == NULL)
		return 0;
	for (struct dirent *d; !found && (d = readdir(descriptors)) != NULL;)
		found = holds(pid, d->d_name, g, node);
	closedir(descriptors);
	return found;
}

// users fills pids with at most max users of the GPU and returns how many there are.
static unsigned users(const gpu *g, unsigned *pids, unsigned max)
{
	char name[PATH_MAX];
	struct stat node;
	unsigned count = 0;
	unsigned long long pid;
	const char *root = getenv("FAKENVML_DEV_ROOT");
	snprintf(name, sizeof name, "%s/nvidia%u", root != NULL && *root != '\0' ? root : "/dev", g->minor);
	if (stat(name, &node) != 0)
		return 0;
	DIR *processes = opendir("/proc");
	if (processes == NULL)
		return 0;
	for (struct dirent *p; (p = readdir(processes)) != NULL;) {
		if (!number(p->d_name, UINT_MAX, &pid) || !uses(p->d_name, g, &node))
			continue;
		if (count < max)
			pids[count] = (unsigned)pid;
		count++;
	}
	closedir(processes);
	return count;
}

enum { MAX_USERS = 4096, USER_MIB = 512 };

// list_users writes the users by means of set, which knows the layout.
static int list_users(gpu *g, unsigned *count, void *infos, void (*set)(void *infos, unsigned i, unsigned pid))
{
	static unsigned pids[MAX_USERS]; // under the lock
	unsigned found = users(g, pids, MAX_USERS);
	if (found > MAX_USERS)
		found = MAX_USERS;
	unsigned room = *count;
	*count = found;
	if (found > room || (found > 0 && infos == NULL))
		return INSUFFICIENT_SIZE;
	for (unsigned i = 0; i < found; i++)
		set(infos, i, pids[i]);
	return SUCCESS;
}

static void set_user_v1(void *infos, unsigned i, unsigned pid)
{
	((process_info_v1 *)infos)[i] = (process_info_v1){.pid = pid, .used = (unsigned long long)USER_MIB << 20};
}

API int nvmlDeviceGetComputeRunningProcesses(gpu *g, unsigned *count, process_info_v1 *infos)
{
	int result = enter_gpu(g);
	return leave(result == SUCCESS ? list_users(g, count, infos, set_user_v1) : result);
}

API int nvmlDeviceGetGraphicsRunningProcesses(gpu *g, unsigned *count, process_info_v1 *infos)
{
	(void)infos;
	int result = enter_gpu(g);
	if (result == SUCCESS)
		*count = 0;
	return leave(result);
}

// --- NVML: events ----------------------------------------------------------------------------------------------------

enum { XID_EVENT = 8 };

static int is_set(const void *handle)
{
	const char *h = handle, *first = (const char *)sets;
	return h >= first && h < (const char *)(sets + MAX_SETS) && (size_t)(h - first) % sizeof sets[0] == 0 &&
	       ((const event_set *)handle)->used;
}

API int nvmlEventSetCreate(event_set **set)
{
	int result = enter();
	if (result != SUCCESS)
		return leave(result);
	for (int i = 0; i < MAX_SETS; i++) {
		if (sets[i].used)
			continue;
		memset(&sets[i], 0, sizeof sets[i]);
		sets[i].used = 1;
		for (int e = 0; e < event_count; e++) // what happened before is not told
			if (events[e].sequence > sets[i].seen)
				sets[i].seen = events[e].sequence;
		*set = &sets[i];
		return leave(SUCCESS);
	}
	return leave(MEMORY);
}

API int nvmlEventSetFree(event_set *set)
{
	int result = enter();
	if (result == SUCCESS && !is_set(set))
		result = INVALID_ARGUMENT;
	if (result == SUCCESS)
		set->used = 0;
	return leave(result);
}

API int nvmlDeviceGetSupportedEventTypes(gpu *g, unsigned long long *types)
{
	int result = enter_gpu(g);
	if (result == SUCCESS)
		*types = XID_EVENT;
	return leave(result);
}

API int nvmlDeviceRegisterEvents(gpu *g, unsigned long long types, event_set *set)
{
	int result = enter_gpu(g);
	if (result == SUCCESS && (!is_set(set) || (types & ~(unsigned long long)XID_EVENT) != 0))
		result = INVALID_ARGUMENT;
	if (result == SUCCESS)
		set->registered[g - gpus] = 1;
	return leave(result);
}

// next_event returns the earliest event that the set has not told, or NULL.
static const event *next_event(event_set *set)
{
	const event *next = NULL;
	for (int i = 0; i < event_count; i++)
		if (events[i].sequence > set->seen && set->registered[events[i].gpu] &&
		    (next == NULL || events[i].sequence < next->sequence))
			next = &events[i];
	return next;
}

// poll_event returns TIMEOUT if there is no event.
static int poll_event(event_set *set, event_data *data)
{
	int result = enter();
	if (result != SUCCESS)
		return leave(result);
	if (!is_set(set))
		return leave(INVALID_ARGUMENT);
	const event *e = next_event(set);
	if (e == NULL)
		return leave(TIMEOUT);
	set->seen = e->sequence;
	data->device = &gpus[e->gpu];
	data->type = XID_EVENT;
	data->data = e->xid;
	return leave(SUCCESS);
}

API int nvmlEventSetWait(event_set *set, event_data *data, unsigned timeout_ms)
{
	const unsigned step_ms = 20;
	const struct timespec step = {.tv_nsec = step_ms * 1000000};
	for (;;) {
		int result = poll_event(set, data);
		if (result != TIMEOUT || timeout_ms == 0)
			return result;
		nanosleep(&step, NULL);
		timeout_ms = timeout_ms > step_ms ? timeout_ms - step_ms : 0;
	}
}

// --- NVML: what old drivers lack (left out with -DFAKENVML_OLD) -------------------------------------------------------

#ifndef FAKENVML_OLD

API int nvmlDeviceGetMigMode(gpu *g, unsigned *current, unsigned *pending)
{
	int result = enter_gpu(g);
	if (result == SUCCESS)
		*current = *pending = (unsigned)g->mig;
	return leave(result);
}

// board_fact answers with a number of the board.
static int board_fact(gpu *g, const unsigned *fact, unsigned factor, unsigned *value)
{
	int result = enter_gpu(g);
	if (result == SUCCESS && *fact == 0)
		result = NOT_SUPPORTED;
	if (result == SUCCESS)
		*value = *fact * factor;
	return leave(result);
}

// board_switch answers with a switch of the board.
static int board_switch(gpu *g, const char *position, int *enabled)
{
	int result = enter_gpu(g);
	if (result == SUCCESS && *position == '\0')
		result = NOT_SUPPORTED;
	if (result == SUCCESS)
		*enabled = strcmp(position, "Enabled") == 0;
	return leave(result);
}

API int nvmlDeviceGetPowerManagementDefaultLimit(gpu *g, unsigned *milliwatt)
{
	return board_fact(g, &g->power_w, 1000, milliwatt);
}

API int nvmlDeviceGetBAR1MemoryInfo(gpu *g, bar1_info *info)
{
	int result = enter_gpu(g);
	if (result == SUCCESS && g->bar1_mib == 0)
		result = NOT_SUPPORTED;
	if (result == SUCCESS)
		*info = (bar1_info){.total = g->bar1_mib << 20, .free = g->bar1_mib << 20};
	return leave(result);
}

API int nvmlDeviceGetMaxClockInfo(gpu *g, int clock, unsigned *mhz)
{
	return board_fact(g, clock == MEMORY_CLOCK ? &g->memory_mhz : &g->cores_mhz, 1, mhz);
}

API int nvmlDeviceGetMaxPcieLinkGeneration(gpu *g, unsigned *generation)
{
	return board_fact(g, &g->pcie_generation, 1, generation);
}

API int nvmlDeviceGetMaxPcieLinkWidth(gpu *g, unsigned *width)
{
	return board_fact(g, &g->pcie_width, 1, width);
}

API int nvmlDeviceGetDisplayMode(gpu *g, int *enabled)
{
	return board_switch(g, g->display, enabled);
}

API int nvmlDeviceGetPersistenceMode(gpu *g, int *enabled)
{
	return board_switch(g, g->persistence, enabled);
}

API int nvmlDeviceGetMemoryAffinity(gpu *g, unsigned size, unsigned long *nodes, int scope)
{
	(void)scope;
	const unsigned bits = 8 * sizeof(unsigned long);
	int result = enter_gpu(g);
	if (result == SUCCESS && g->numa < 0)
		result = NOT_SUPPORTED;
	if (result == SUCCESS && (unsigned)g->numa / bits >= size)
		result = INSUFFICIENT_SIZE;
	if (result != SUCCESS)
		return leave(result);
	memset(nodes, 0, size * sizeof *nodes);
	nodes[(unsigned)g->numa / bits] = 1ul << ((unsigned)g->numa % bits);
	return leave(SUCCESS);
}

API int nvmlDeviceGetNvLinkRemoteDeviceType(gpu *g, unsigned link, int *type)
{
	int result = enter_link(g, link);
	if (result == SUCCESS)
		*type = g->link[link].remote;
	return leave(result);
}

API int nvmlDeviceGetRemappedRows(gpu *g, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failure)
{
	int result = enter_gpu(g);
	if (result == SUCCESS) {
		*corrected = 0;
		*uncorrected = g->remap_pending;
		*pending = g->remap_pending;
		*failure = g->remap_failure;
	}
	return leave(result);
}

API int nvmlDeviceGetGpuFabricInfoV(gpu *g, fabric_info *info)
{
	int result = enter_gpu(g);
	if (result != SUCCESS)
		return leave(result);
	unsigned version = info->version >> 24;
	if (version != 2 && version != 3)
		return leave(ARGUMENT_VERSION_MISMATCH);
	memcpy(info->cluster, g->cluster, sizeof info->cluster);
	info->status = g->fabric_status;
	info->clique = g->clique;
	info->state = g->has_fabric ? (unsigned char)g->fabric_state : 0;
	info->health = 0;
	if (version == 3)
		info->summary = 0;
	return leave(SUCCESS);
}

static void set_user_v3(void *infos, unsigned i, unsigned pid)
{
	((process_info *)infos)[i] = (process_info){
		.pid = pid, .used = (unsigned long long)USER_MIB << 20, .gpu_instance = UINT_MAX, .compute_instance = UINT_MAX,
	};
}

API int nvmlDeviceGetComputeRunningProcesses_v3(gpu *g, unsigned *count, process_info *infos)
{
	int result = enter_gpu(g);
	return leave(result == SUCCESS ? list_users(g, count, infos, set_user_v3) : result);
}

API int nvmlDeviceGetGraphicsRunningProcesses_v3(gpu *g, unsigned *count, process_info *infos)
{
	(void)infos;
	int result = enter_gpu(g);
	if (result == SUCCESS)
		*count = 0;
	return leave(result);
}

API int nvmlEventSetWait_v2(event_set *set, event_data *data, unsigned timeout_ms)
{
	int result = nvmlEventSetWait(set, data, timeout_ms);
	if (result == SUCCESS)
		data->gpu_instance = data->compute_instance = UINT_MAX;
	return result;
}

#endif
