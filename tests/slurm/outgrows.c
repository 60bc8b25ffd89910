/* SPDX-License-Identifier: GPL-2.0-or-later
 * As outgrows.py, in C: outgrows KIND SEED MIB. KIND is "blocks", one after the other, or "whole", all by one call.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1UL << 20)

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	int whole = strcmp(argv[1], "whole") == 0;
	unsigned byte = strtoul(argv[2], NULL, 10) % 251;
	unsigned long count = strtoul(argv[3], NULL, 10);
	unsigned char **blocks = calloc(count, sizeof(*blocks));
	unsigned char *all = whole ? malloc(count * MIB) : NULL;

	if (!blocks || (whole && !all))
		return 3;
	if (whole)
		memset(all, 255, count * MIB);
	for (unsigned long number = 0; number < count; number++) {
		byte = (byte * 73 + number + 1) % 251 + 1;
		blocks[number] = whole ? all + number * MIB : malloc(MIB);
		if (!blocks[number])
			return 3;
		memset(blocks[number], byte, MIB);
	}
	printf("has ");
	for (unsigned long number = 0; number < count; number++) {
		unsigned char *block = blocks[number], found = block[0];

		for (unsigned long at = 0; at < MIB; at++)
			found = block[at] == block[0] ? found : 0;
		printf("%02x", found);
	}
	printf("\n");
	return 0;
}
