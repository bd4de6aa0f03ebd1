/* What the provider offers, as far as it is asked for. */
#define _GNU_SOURCE
#include "rules.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES_MAX (1u << 30)
#define DOMAINS 2
#define MR_MODE (FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY)
#define CAPS                                                                                           \
	(FI_MSG | FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_SEND | FI_RECV | \
	 FI_LOCAL_COMM | FI_REMOTE_COMM)

size_t bytes_max(void) { return number_of("EFA_RULES_BYTES_MAX", BYTES_MAX); }

static struct fi_info *new_info(void)
{
	struct fi_info *info = calloc(1, sizeof(*info));
	info->tx_attr = calloc(1, sizeof(*info->tx_attr));
	info->rx_attr = calloc(1, sizeof(*info->rx_attr));
	info->ep_attr = calloc(1, sizeof(*info->ep_attr));
	info->domain_attr = calloc(1, sizeof(*info->domain_attr));
	info->fabric_attr = calloc(1, sizeof(*info->fabric_attr));
	return info;
}

uint32_t fi_version(void) { return FI_VERSION(1, 22); }

const char *fi_strerror(int code)
{
	return code == FI_EKEYREJECTED ? "no such key" : code == FI_EHOSTUNREACH ? "the peer is gone" : strerror(code);
}

struct fi_info *fi_dupinfo(const struct fi_info *info) { return info ? NULL : new_info(); }

void fi_freeinfo(struct fi_info *info)
{
	while (info) {
		struct fi_info *next = info->next;
		free(info->domain_attr->name);
		free(info->fabric_attr->name);
		free(info->fabric_attr->prov_name);
		free(info->tx_attr);
		free(info->rx_attr);
		free(info->ep_attr);
		free(info->domain_attr);
		free(info->fabric_attr);
		free(info);
		info = next;
	}
}

static bool is_meant(const char *asked, const char *name) { return !asked || !*asked || !strcmp(asked, name); }

/* Whether a fabric has what is asked for. */
static bool offers(const struct fi_info *hints, const char *fabric, const char *domain)
{
	bool is_direct = !strcmp(fabric, "efa-direct");

	return is_meant(hints->fabric_attr->prov_name, "efa") && is_meant(hints->fabric_attr->name, fabric) &&
	       is_meant(hints->domain_attr->name, domain) && !(hints->caps & ~CAPS) &&
	       (hints->domain_attr->mr_mode & MR_MODE) == MR_MODE &&
	       /* Only the other fabric, which has packets of its own, knows when bytes are delivered. */
	       !(is_direct && (hints->tx_attr->op_flags & FI_DELIVERY_COMPLETE)) &&
	       !(is_direct && !(hints->mode & FI_CONTEXT2));
}

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
	       const struct fi_info *hints, struct fi_info **found)
{
	static struct fi_device_attr devices[DOMAINS] = {{.name = "rdmap0s0"}, {.name = "rdmap1s0"}};
	static struct fi_bus_attr buses[DOMAINS] = {{.bus_type = FI_BUS_PCI, .attr.pci = {0, 0x10, 0x1b, 0}},
						    {.bus_type = FI_BUS_PCI, .attr.pci = {0, 0x20, 0x1b, 0}}};
	static struct fi_link_attr link = {.speed = 100000000000};
	static struct fid_nic nics[DOMAINS];
	static const char *const fabrics[] = {"efa", "efa-direct"};
	struct fi_info **last = found;

	(void)node, (void)service, (void)flags;
	*found = NULL;
	if (version != FI_VERSION(1, 22) || hints->ep_attr->type != FI_EP_RDM)
		return -FI_EINVAL;
	for (int i = 0; i < 2 * DOMAINS; i++) {
		const char *fabric = fabrics[i / DOMAINS];
		char domain[32];
		snprintf(domain, sizeof(domain), "%s-rdm", devices[i % DOMAINS].name);
		if (!offers(hints, fabric, domain))
			continue;
		struct fi_info *info = new_info();
		info->caps = hints->caps;
		info->mode = FI_CONTEXT2 | (hints->mode & FI_RX_CQ_DATA);
		info->tx_attr->inject_size = 32;
		info->tx_attr->size = TX_SIZE;
		info->rx_attr->size = RX_SIZE;
		info->tx_attr->iov_limit = 2;
		info->tx_attr->rma_iov_limit = 1;
		info->tx_attr->op_flags = hints->tx_attr->op_flags | FI_TRANSMIT_COMPLETE;
		info->ep_attr->type = FI_EP_RDM;
		info->ep_attr->protocol = FI_PROTO_EFA;
		info->ep_attr->max_msg_size = bytes_max();
		info->domain_attr->name = strdup(domain);
		info->domain_attr->threading = FI_THREAD_SAFE;
		info->domain_attr->data_progress = info->domain_attr->control_progress = FI_PROGRESS_AUTO;
		info->domain_attr->mr_mode = MR_MODE;
		info->domain_attr->mr_key_size = 8;
		info->domain_attr->mr_iov_limit = 1;
		info->domain_attr->cq_data_size = 4;
		info->fabric_attr->name = strdup(fabric);
		info->fabric_attr->prov_name = strdup("efa");
		nics[i % DOMAINS] = (struct fid_nic){.device_attr = &devices[i % DOMAINS],
						     .bus_attr = &buses[i % DOMAINS],
						     .link_attr = &link};
		info->nic = &nics[i % DOMAINS];
		*last = info;
		last = &info->next;
	}
	return *found ? 0 : -FI_ENODATA;
}
