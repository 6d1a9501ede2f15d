/* The first process of each pod: holds the pod's namespaces open. */
#include <unistd.h>

int main(void) {
    for (;;)
        pause();
}
